"""The grid of a frontier: configured methods, each at all its sizes and mixes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import api
from ..core.scalars import is_number
from ..errors import OptionError
from ..fusing.budget import Budget
from ..fusing.options import Method, Recipe, check_masses_in_budget, resolve
from ..fusing.validation import check_mix

ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
Methods = Sequence[Method] | Mapping[str, Mapping[str, Any]]

# Options of `fuse` that are the same for the whole frontier.
COMMON = {
    *("models", "example_inputs", "output", "mix", "evaluate", "data", "blueprint", "check", "allow_shortfall"),
    *("seed", "device", "progress"),
}


@dataclass(frozen=True)
class MethodConfig:
    """A method with its options, under a name.

    Attributes:
        name: the name in tables and on the page.
        recipe: the options, except for the mix and, where there are several, the size.
        budget: the size, where it is given as a budget.
        exact: leave norm statistics alone where nothing is reduced.
        alphas: the sizes it is measured at; None for the one that the options give.
    """

    name: str
    recipe: Recipe
    budget: Budget | None
    exact: bool
    alphas: tuple[float | None, ...]


@dataclass(frozen=True)
class Combination:
    """One network to make."""

    config: MethodConfig
    alpha: float | None
    mix: tuple[float, ...]

    @property
    def single_alpha(self) -> float | None:
        """Its alpha, where that is one number."""
        alpha = None if self.config.budget else self.recipe.alpha
        return float(alpha) if is_number(alpha) else None  # type: ignore[arg-type]

    @property
    def recipe(self) -> Recipe:
        recipe = replace(self.config.recipe, mix=self.mix)
        return recipe if self.alpha is None else replace(recipe, alpha=self.alpha)


def combinations(configs: Sequence[MethodConfig], mixes: Sequence[tuple[float, ...]]) -> Iterator[Combination]:
    """One method after the other, from small to large."""
    for config in configs:
        for alpha in config.alphas:
            for mix in mixes:
                yield Combination(config, alpha, mix)


def method_configs(
    methods: Methods,
    alphas: Sequence[float] | None,
    budgets: Sequence[float | Budget] | None,
    shared: Mapping[str, Any],
    **known: Any,
) -> list[MethodConfig]:
    """The methods that a user's option means, checked before anything is computed.

    Args:
        methods: names or objects as `fuse` takes them, or a mapping from names to options of `fuse`.
        alphas: sizes for the methods that can leave a part of a space isolated; the others are measured at alpha=0.
            None: the usual ones, and none of them where there are budgets.
        budgets: further sizes for these methods.
        shared: options of `fuse` that a method may replace.
        known: the seed, whether there is data, and whether the models were trained from one base, as for `resolve`.
    """
    if isinstance(methods, str) or not isinstance(methods, (Sequence, Mapping)):
        raise OptionError(f"methods={methods!r} must be a list of methods, or a mapping from names to options of fuse")
    if isinstance(methods, Mapping):
        given = {str(name): _checked(name, options) for name, options in methods.items()}
    else:
        given = {method if isinstance(method, str) else str(method): {"method": method} for method in methods}
    if not given:
        raise OptionError("methods is empty: give at least one, such as ('partial-ot',)")
    bounds = _budgets(budgets)
    sizes = () if alphas is None and bounds else sizes_of(ALPHAS if alphas is None else alphas)
    return [
        config
        for name, options in given.items()
        for config in _configs(name, {**shared, **options}, sizes, bounds, known)
    ]


def _budgets(budgets: Sequence[float | Budget] | None) -> tuple[Budget, ...]:
    if budgets is None:
        return ()
    if not isinstance(budgets, (list, tuple)) or not budgets:
        raise OptionError(f"budgets={budgets!r} must be a list of one or more, such as (1.0, pf.Budget(flops=1.5))")
    return tuple(dict.fromkeys(Budget.of(budget) for budget in budgets))


def sizes_of(alphas: Sequence[float]) -> tuple[float, ...]:
    """The alphas in order, each once."""
    if not isinstance(alphas, Sequence) or not alphas:
        raise OptionError(f"alphas={alphas!r} must be a list of one or more numbers from 0 to 1")
    for alpha in alphas:
        if not is_number(alpha) or not 0 <= alpha <= 1:
            raise OptionError(
                f"alphas: {alpha!r} is not a number from 0 to 1; for a separate alpha per space give methods as a "
                "mapping: {'name': {'alpha': {…}}}"
            )
    return tuple(sorted({float(alpha) for alpha in alphas}))


def mixes_of(mixes: Sequence[Any] | None, models: int) -> tuple[tuple[float, ...], ...]:
    """The mixes, each once. Default: equal shares."""
    if mixes is None:
        return (check_mix(None, models),)
    if isinstance(mixes, str) or not isinstance(mixes, Sequence) or not mixes:
        raise OptionError(f"mixes={mixes!r} must be a list of mixes, each with one share for each model")
    return tuple(dict.fromkeys(check_mix(mix, models) for mix in mixes))


def _checked(name: Any, options: Any) -> dict[str, Any]:
    """The options of one method, each of which must be one of `fuse`."""
    if not isinstance(options, Mapping):
        raise OptionError(f"methods[{name!r}] is {options!r}: give options of fuse, such as {{'method': 'partial-ot'}}")
    known = [option for option in inspect.signature(api.fuse).parameters if option not in COMMON]
    for option in options:
        if option not in known:
            raise OptionError(f"methods[{name!r}]: {option!r} is not an option here: choose from {', '.join(known)}")
    return dict(options)


def _configs(
    name: str,
    options: dict[str, Any],
    alphas: tuple[float, ...],
    budgets: Sequence[Budget],
    known: Mapping[str, Any],
) -> Iterator[MethodConfig]:
    """A method at the alphas, and at each of the budgets, where it leaves the size open."""
    plain = _config(name, options, alphas, known)
    if plain.alphas:
        yield plain
    if plain.budget is None and plain.recipe.partial and options.get("alpha") is None:
        for budget in budgets:
            yield _config(name, {**options, "budget": budget}, alphas, known)


def _config(name: str, options: dict[str, Any], alphas: tuple[float, ...], known: Mapping[str, Any]) -> MethodConfig:
    defaults: dict[str, Any] = {"method": "partial-ot", "alpha": None, "refit": "auto"}
    defaults |= {
        "zeros": "auto",
        "features": "auto",
        "site": "auto",
        "similarity": None,
        "align": "fixed-point",
        "masses": "equal",
        "norm": "auto",
        "convention": "value",
        "round_to": "auto",
    }
    asked = {key: options.get(key, default) for key, default in defaults.items()}
    budget = None if options.get("budget") is None else Budget.of(options["budget"])
    if budget is not None:
        check_masses_in_budget(asked["masses"])
    effective = budget is not None and budget.effective
    recipe = resolve(keep=None, mix=(), effective=effective, **known, **asked)
    alpha = asked["alpha"]
    if alpha is not None and budget is not None:
        raise OptionError(f"methods[{name!r}]: alpha and budget exclude each other")
    sizes = (None,) if alpha is not None or budget is not None else alphas if recipe.partial else (0.0,)
    label = f"auto ({recipe.method})" if name == "auto" and recipe.otherwise is None else name
    return MethodConfig(label, recipe, budget, asked["norm"] == "auto", sizes)
