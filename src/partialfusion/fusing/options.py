"""The options of a fusion or a pruning, checked and resolved: one place for every default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ..core.literals import Alpha, Basis, Convention, Keep, Masses, MethodName, Refit, RoundTo, Site, Zeros
from ..core.scalars import check_seed, is_number
from ..errors import DataError, OptionError
from ..surgery import RIDGE
from .methods import Cluster, Interpolate, Magnitude, PruningMethod, Zip
from .rounding import check_round_to

Method = MethodName | PruningMethod

COUPLING = ("average", "permutation", "ot", "partial-ot")
PRUNING: dict[str, PruningMethod] = {
    method.name: method for method in (Cluster(), Interpolate(), Zip(), Magnitude(), Magnitude(transport=True))
}
DEFAULT_ALPHA = 0.4
BOTH: tuple[Basis, Basis] = ("permutation", "rotation")


@dataclass(frozen=True)
class Recipe:
    """The options a result is made with; nothing is "auto" any more but the site, which then suits each space.

    `alpha` is for fusions and `keep` for prunings of one model; the other is None. `refit` is the strength of the
    ridge, 0 where nothing was refitted. `zeros` is what refitting may do with the zero blocks: "free" or "kept".
    `similarity` is "rotation" where spaces that may be rotated are compared by their directions; None until it is known
    whether this is a transformer with any, and "auto" until it is known whether channels or directions give the result
    that is nearer to the models. `round_to` is the number of channels that every part of a space is a multiple of;
    "auto" where the device's kernels decide. `otherwise` is a second method to try, until it is known which result is
    nearer.
    """

    method: str
    features: str
    site: Site
    align: str
    norm: str
    convention: Convention
    alpha: Alpha | None
    keep: Keep | None
    mix: tuple[float, ...]
    seed: int
    pruning: PruningMethod | None = None
    refit: float = 0.0
    zeros: Literal["free", "kept"] = "kept"
    similarity: Basis | None = "permutation"
    round_to: RoundTo = 1
    masses: Masses = "equal"
    otherwise: PruningMethod | None = None

    @property
    def alternatives(self) -> list[Recipe]:
        """One recipe for each method, by channels and by directions, that is to be tried."""
        methods = [replace(self, otherwise=None)]
        if (other := self.otherwise) is not None:
            features, site = other.prefers.features, other.prefers.site
            methods.append(replace(methods[0], method=other.name, pruning=other, features=features, site=site))
        bases: tuple[Basis | None, ...] = BOTH if self.similarity == "auto" else (self.similarity,)
        return [replace(one, similarity=basis) for one in methods for basis in bases]

    @property
    def partial(self) -> bool:
        """Whether the method can leave a part of a space isolated."""
        return self.method not in ("average", "permutation", "ot")

    @property
    def by_activations(self) -> bool:
        """Whether channels are matched by activations alone, by correlation or by distance."""
        return self.features in ("activations", "distances")

    @property
    def is_average(self) -> bool:
        """Whether the plain average of the models is what was asked for."""
        return self.method == "average" and self.alpha == 0.0

    @property
    def needs_equal_widths(self) -> bool:
        return self.method in ("average", "permutation")


def resolve(
    *,
    method: str | PruningMethod,
    features: str,
    site: Site,
    align: str,
    norm: str,
    convention: Convention,
    alpha: Alpha | None,
    keep: Keep | None,
    mix: tuple[float, ...],
    seed: int,
    refit: Refit,
    zeros: Zeros = "auto",
    similarity: Basis | None = None,
    round_to: RoundTo = "auto",
    masses: Masses = "equal",
    has_data: bool,
    effective: bool = False,
    related: bool = False,
) -> Recipe:
    """The recipe that a user's options mean.

    Beside the options themselves, whether there is data, whether a budget bounds the effective parameters, which grow
    where refitting fills zero blocks, and whether the models were trained from one base.
    """
    known = ("auto", *PRUNING) if keep is not None else ("auto", *COUPLING, *PRUNING)
    automatic = isinstance(method, str) and method == "auto"
    anew = automatic and has_data and not related
    open_ = anew and features == "auto" and site == "auto"
    if automatic:
        reads = features in ("auto", "activations") and site in ("auto", "post") and not related
        method = suited("cluster" if keep is not None else "partial-ot", reads and has_data, has_data and effective)
    if isinstance(method, str):
        _known("method", method, known)
        pruning = PRUNING.get(method)
    else:
        pruning = _own_method(method, known)
    name = method if pruning is None else pruning.name
    assert isinstance(name, str)
    _known("align", align, ("fixed-point", "greedy"))
    _known("convention", convention, ("value", "mass"))
    _known("site", site, ("auto", "pre", "post"))
    _known("masses", masses, get_args(Masses))
    if masses != "equal" and name not in ("ot", "partial-ot"):
        raise OptionError(f"masses={masses!r} is for the methods ot and partial-ot, not for {name}")
    if similarity is not None:
        _known("similarity", similarity, ("auto", *BOTH))
    if pruning is not None and getattr(pruning.prefers, "only", False):
        _known("features", features, ("auto", "weights", pruning.prefers.features))
        _known("site", site, ("auto", pruning.prefers.site))
    if pruning is not None and features == "distances":
        raise OptionError(
            f"features='distances' is for methods that match channels, not for {name}: where generalised pruning "
            "compares activations, it is by distance already; use features='activations'"
        )
    if features == "auto" and pruning is not None and has_data:
        features = pruning.prefers.features
    features = _with_data("features", features, ("activations", "distances", "both"), "weights", has_data)
    if norm != "repair":  # from data or from weights
        norm = _with_data("norm", norm, ("recalibrate",), "analytic", has_data)
    if pruning is not None and pruning.needs_data and not has_data:
        raise DataError(f"{pruning} needs data: pass data=… (batches of inputs)")
    if isinstance(refit, str) and refit == "auto":
        refit = anew
    ridge = ridge_of(refit)
    if ridge and not has_data:
        raise DataError("refit needs data: pass data=… (batches of inputs; labels are not used)")
    if alpha is None and keep is None:
        alpha = 0.0 if name in COUPLING and name != "partial-ot" else DEFAULT_ALPHA
    if site == "auto":
        site = "pre" if pruning is None else pruning.prefers.site
    filling = zeros_of(zeros, "kept" if effective else "free")
    if filling == "free" and effective:
        raise OptionError(
            "zeros='free' and a budget of effective parameters exclude each other: refitting would fill the zero "
            "blocks that the budget does not count; use Budget(dense=…), or zeros='kept'"
        )
    alpha, keep = _plain(alpha), _plain(keep)
    return Recipe(
        name,
        features,
        site,
        align,
        norm,
        convention,
        alpha,
        keep,
        mix,
        check_seed(seed),
        pruning,
        ridge,
        filling,
        _basis(similarity, name, anew, has_data),
        check_round_to(round_to),
        masses,
        otherwise=PRUNING["cluster"] if open_ and ridge and name == "interpolate" else None,
    )


def told_apart(recipes: Sequence[Recipe]) -> list[str]:
    """A name for each recipe, by what not all of them have in common: the method, or channels and directions."""
    methods, bases = ({getattr(r, name) for r in recipes} for name in ("method", "similarity"))
    return [
        ", ".join([r.method] * (len(methods) > 1) + [str(r.similarity)] * (len(bases) > 1)) or r.method for r in recipes
    ]


def check_masses_in_budget(masses: Masses) -> None:
    """Raise where masses by importance meet a budget."""
    if masses != "equal":
        raise OptionError(f"masses={masses!r} needs a given alpha: budgets compare sizes by channels of equal masses")


def _basis(similarity: Basis | None, method: str, auto: bool, has_data: bool) -> Basis | None:
    """What is compared: where the user does not say, the directions of transformers if the method is automatic and
    there is data. Without data there is nothing to measure by, and "auto" is channels."""
    if similarity == "rotation" and method == "average":
        raise OptionError("method='average' compares nothing, so similarity='rotation' has no meaning for it")
    if similarity == "auto":
        return "auto" if has_data and method != "average" else "permutation"
    return similarity if similarity is not None or auto else "permutation"


def _plain(given: Any) -> Any:
    """Numbers of NumPy as Python's, which files can hold; anything else as it is, to be checked with the blueprint."""
    if isinstance(given, Mapping):
        return {pattern: _plain(value) for pattern, value in given.items()}
    return float(given) if is_number(given) else given


def suited(otherwise: str, dense: bool, effective: bool) -> str:
    """The method that was the best one where it was measured (docs/choosing.md).

    Args:
        otherwise: the method where there is no data, or the models have one base.
        dense: whether there is data, nothing keeps a method from reading combinations of activations, and the models
            have not one base.
        effective: whether there is data, and the result is to be small as blocks and in files.
    """
    if effective:
        return "cluster"
    return "interpolate" if dense else otherwise


def ridge_of(refit: bool | float) -> float:
    """The strength that an option means: True is the default one, False none."""
    if isinstance(refit, (bool, np.bool_)):
        return RIDGE if refit else 0.0
    if not is_number(refit) or not (math.isfinite(refit) and refit > 0):
        raise OptionError(f"refit={refit!r} must be True, False, or the strength of the ridge, a number above 0")
    return float(refit)


def zeros_of(zeros: Zeros, auto: Literal["free", "kept"]) -> Literal["free", "kept"]:
    """What refitting may do with zero blocks: what the user says, or what suits the result."""
    _known("zeros", zeros, ("auto", "free", "kept"))
    return auto if zeros == "auto" else zeros


def _own_method(method: Any, known: Sequence[str]) -> PruningMethod:
    if callable(getattr(method, "choose", None)) and all(hasattr(method, a) for a in ("name", "needs_data", "prefers")):
        return method
    raise OptionError(
        f"method={method!r} is not known: choose one of {', '.join(known)}, or pass an object such as pf.Cluster(…)"
    )


def _known(option: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise OptionError(f"{option}={value!r} is not known: choose one of {', '.join(known)}")


def _with_data(option: str, value: str, needing: Sequence[str], without: str, has_data: bool) -> str:
    """An option whose automatic value depends on whether there is data."""
    _known(option, value, ("auto", without, *needing))
    if value == "auto":
        return needing[0] if has_data else without
    if value in needing and not has_data:
        raise DataError(f"{option}={value!r} needs data: pass data=… (batches of inputs), or {option}={without!r}")
    return value
