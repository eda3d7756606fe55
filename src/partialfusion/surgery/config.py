"""Configurations that say how a model is built, as Hugging Face's have: they follow the result, or it says so."""

from __future__ import annotations

import copy
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import chain, combinations
from typing import Any

import torch
from torch import nn

from ..core.inputs import Inputs, run
from ..core.modules import canonical_names, first_line, named_tensors
from ..errors import CheckpointError
from ..nn import ViewNorm
from .numbers import numbers_of, set_number

log = logging.getLogger(__name__)

TRIALS = 60  # configurations that are tried
OWN = "save_pretrained"

Field = tuple[tuple[str, ...], str]  # attributes that lead to a configuration within the configuration, and a number
Numbers = Mapping[Field, int]


@dataclass(frozen=True)
class Refusal:
    """Stands for the `save_pretrained` of a model that its configuration does not describe. Copies of it keep it."""

    model: str
    why: str

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise CheckpointError(
            f"the config of this {self.model} does not describe it ({self.why}), so from_pretrained could not load "
            "what save_pretrained writes: call pf.save_pretrained(result, dir), and pf.from_pretrained(dir) to load it"
        )


def follow_config(model: nn.Module, source: nn.Module, inputs: Inputs | None = None) -> None:
    """Let the configuration of a result say how it is built, or let its `save_pretrained` refuse.

    A configuration is taken if the model that is built from it has all tensors of the result, under the same names and
    with the same shapes, and with them gives the same outputs on the inputs, bit for bit. Models without a
    `save_pretrained` stay as they are.

    Args:
        model: a copy of the source with other widths; its configuration is replaced.
        source: the model whose configuration describes it.
        inputs: example inputs; without them no configuration is looked for.
    """
    if not hasattr(model, OWN) or _same_form(model, source):
        return
    views = any(isinstance(m, ViewNorm) for m in model.modules())
    other = "it has other widths than the model it was loaded into" if inputs is None else "no config gives its widths"
    why = "it has norms with several views" if views else other
    built = None
    if not views and inputs is not None and isinstance(getattr(model, "config", None), _Described):
        built = _Search(model, source, inputs).found()
    if built is None:
        refuse(model, why)
        return
    vars(model).pop(OWN, None)
    fresh = dict(built.named_modules())
    for path, module in model.named_modules():
        if "config" in vars(module) and hasattr(fresh.get(path), "config"):
            module.config = fresh[path].config
        for name, value in numbers_of(fresh[path]).items():
            if numbers_of(module).get(name, value) != value:
                set_number(module, name, value)  # as good as the old one, and what the config gives


def refuse(model: nn.Module, why: str) -> None:
    """Let the `save_pretrained` of a model say why its config does not describe it, if it has one."""
    if hasattr(model, OWN) and OWN not in vars(model):
        setattr(model, OWN, Refusal(type(model).__name__, why))


def accept(model: nn.Module, why: str) -> None:
    """Give a model its own `save_pretrained` back, if it was refused for this reason."""
    held = vars(model).get(OWN)
    if isinstance(held, Refusal) and held.why == why:
        delattr(model, OWN)


class _DescribedMeta(type):
    def __instancecheck__(cls, value: object) -> bool:
        return callable(getattr(value, "to_dict", None)) and callable(getattr(type(value), "from_dict", None))


class _Described(metaclass=_DescribedMeta):
    """Any configuration that can be written as a dict and read from one."""


def _form(model: nn.Module) -> dict[str, object]:
    """Name → shape of every tensor, and which are the same tensor."""
    tensors = named_tensors(model)
    return {name: (tuple(tensors[first].shape), first) for name, first in canonical_names(model).items()}


def _same_form(model: nn.Module, source: nn.Module) -> bool:
    """Whether two models of one class have the same tensors and the same numbers in all their modules."""
    numbers = ([numbers_of(m) for m in side.modules()] for side in (model, source))
    return _form(model) == _form(source) and next(numbers) == next(numbers)


class _Search:
    """The search for a configuration of a resized model.

    Numbers of the source's configuration that equal the length of an axis may become the new length of such an axis;
    those that divide it may keep their proportion to it, as the number of heads does.
    """

    def __init__(self, model: nn.Module, source: nn.Module, inputs: Inputs) -> None:
        self.model, self.inputs = model, inputs
        self.config: Any = source.config
        self.form = _form(model)
        self.expected = run(model, inputs)
        self.lengths = _lengths(model, source)
        self.held = dict(_fields(self.config))
        self.trials = 0

    def found(self) -> nn.Module | None:
        """A model as the right configuration builds it, without its tensors; None where there is none."""
        held = self.held
        exact = {field: self._equal(value) for field, value in held.items() if self._equal(value)}
        others = {field: self._proportional(value) for field, value in held.items()}
        options = {field: [*exact.get(field, ()), *others[field], held[field]] for field in held}
        options = {field: values for field, values in options.items() if len(set(values)) > 1}
        options |= {field: self._new() for field in _unset(self.config)}
        best = {field: values[0] for field, values in exact.items()}
        score, built = self._try(best)
        while score:
            for score_now, built_now, changes in self._steps(best, options):
                if score_now < score:
                    score, built, best = score_now, built_now, changes
                    break
            else:
                return None
        return self._fewest(best, built)

    def _fewest(self, changes: Numbers, built: nn.Module | None) -> nn.Module | None:
        """The model with no more numbers changed than need be: others may matter for other inputs."""
        for field in list(changes):
            fewer = {f: value for f, value in changes.items() if f != field}
            score, without = self._try(fewer)
            if not score:
                changes, built = fewer, without
        log.debug("the config follows with %s", changes)
        return built

    def _steps(
        self, start: Numbers, options: Mapping[Field, list[int]]
    ) -> Iterator[tuple[float, nn.Module | None, dict[Field, int]]]:
        """The configurations next to one: with one number changed, all of one name in the configurations within, or
        any two."""
        singles = [
            (field, value)
            for field, values in options.items()
            for value in dict.fromkeys(values)
            if value != start.get(field, self.held.get(field))
        ]
        alike: dict[tuple[str, int], list[tuple[Field, int]]] = defaultdict(list)
        for field, value in singles:
            alike[field[1], value].append((field, value))
        pairs = (pair for pair in combinations(singles, 2) if pair[0][0] != pair[1][0])
        for chosen in chain(((s,) for s in singles), (group for group in alike.values() if len(group) > 1), pairs):
            if self.trials >= TRIALS:
                return
            changes = {**start, **dict(chosen)}
            yield *self._try(changes), changes

    def _try(self, changes: Numbers) -> tuple[float, nn.Module | None]:
        """How many tensors a model with these numbers has otherwise; a half where only its outputs differ."""
        self.trials += 1
        try:
            config = _changed(self.config, changes)
            built = _built(self.model, config, "meta")
            form = _form(built)
            wrong = sum(form.get(name) != self.form.get(name) for name in {**form, **self.form})
            return (float(wrong), built) if wrong else ((0.0, built) if self._same_outputs(built) else (0.5, built))
        except Exception as error:  # numbers that contradict each other
            log.debug("%s: %s", changes, first_line(error))
            return float("inf"), None

    def _same_outputs(self, built: nn.Module) -> bool:
        """Whether the model gives the same outputs with the tensors of the result."""
        try:
            found = run(_filled(built, self.model), self.inputs)
        except (NotImplementedError, RuntimeError):  # tensors that are neither parameters nor buffers were left out
            real = _built(self.model, copy.deepcopy(built.config), "cpu")
            found = run(_filled(real, self.model), self.inputs)
        return len(found) == len(self.expected) and all(map(torch.equal, found, self.expected))

    def _equal(self, value: int) -> list[int]:
        """New lengths of axes that were as long as this, the most frequent first, if one has changed."""
        lengths = [new for (old, new), _ in self.lengths.most_common() if old == value]
        return [] if set(lengths) <= {value} else sorted(lengths, key=lambda new: new == value)

    def _proportional(self, value: int) -> list[int]:
        if value < 2:
            return []
        found = [
            value * new // old
            for (old, new), _ in self.lengths.most_common()
            if old != new and old > value and old % value == 0 and value * new % old == 0 and new >= old // value
        ]
        return [n for n in dict.fromkeys(found) if n != value]

    def _new(self) -> list[int]:
        return list(dict.fromkeys(new for (old, new), _ in self.lengths.most_common() if old != new))[:3]


def _lengths(model: nn.Module, source: nn.Module) -> Counter[tuple[int, int]]:
    """How often an axis of one length in the source has another in the result."""
    new = named_tensors(model)
    return Counter(
        pair
        for name, tensor in named_tensors(source).items()
        if name in new
        for pair in zip(tensor.shape, new[name].shape, strict=False)
    )


def _fields(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Field, int]]:
    """The whole numbers of a configuration and of those within it; entries of lists are numbers of their own."""
    for name, value in numbers_of(config).items():
        if not name.startswith("_"):
            yield (path, name), value
    for name, value in vars(config).items():
        if isinstance(value, _Described):
            yield from _fields(value, (*path, name))


def _unset(config: Any) -> list[Field]:
    """Numbers that a configuration leaves open and its class has a place for, such as a width that another implies."""
    given = getattr(type(config), "__annotations__", {})
    return [((), name) for name, value in vars(config).items() if value is None and "int" in str(given.get(name, ""))]


def _changed(config: Any, changes: Numbers) -> Any:
    """A copy of a configuration with other numbers, as it is when it has been written and read again."""
    new = copy.deepcopy(config)
    for (path, name), value in changes.items():
        set_number(reduce(getattr, path, new), name, value)
    again = type(config).from_dict(new.to_dict())
    with suppress(AttributeError):  # a choice of the user that is not written
        again._attn_implementation = config._attn_implementation
    return again


def _built(model: nn.Module, config: Any, device: str) -> Any:
    with torch.random.fork_rng(devices=[]), torch.device(device):
        return type(model)(config)


def _filled(built: nn.Module, model: nn.Module) -> nn.Module:
    """A model with the tensors of another, which are not copied."""
    modules = dict(built.named_modules(remove_duplicate=False))
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            modules[path]._parameters[name] = parameter
        for name, buffer in module._buffers.items():
            modules[path]._buffers[name] = buffer
    return built
