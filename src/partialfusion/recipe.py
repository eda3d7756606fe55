"""The options of a fusion, checked and resolved: one place for every default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .errors import DataError, OptionError
from .kernels import Convention

Method = Literal["average", "permutation", "ot", "partial-ot"]
Features = Literal["auto", "weights", "activations", "both"]
Align = Literal["fixed-point", "greedy"]
NormRule = Literal["auto", "recalibrate", "analytic"]
Alpha = float | Mapping[str, float]

METHODS = ("average", "permutation", "ot", "partial-ot")
DEFAULT_ALPHA = 0.4


@dataclass(frozen=True)
class Recipe:
    """The options a result is made with; nothing is "auto" any more."""

    method: str
    features: str
    align: str
    norm: str
    convention: Convention
    alpha: Alpha
    mix: tuple[float, ...]
    seed: int

    @property
    def partial(self) -> bool:
        """Whether the method can leave a part of a space isolated."""
        return self.method == "partial-ot"

    @property
    def needs_equal_widths(self) -> bool:
        return self.method in ("average", "permutation")


def resolve(
    *,
    method: str,
    features: str,
    align: str,
    norm: str,
    convention: Convention,
    alpha: Alpha | None,
    mix: tuple[float, ...],
    seed: int,
    has_data: bool,
) -> Recipe:
    """The recipe that a user's options mean, with or without data."""
    _known("method", method, METHODS)
    _known("align", align, ("fixed-point", "greedy"))
    _known("convention", convention, ("value", "mass"))
    features = _with_data("features", features, ("activations", "both"), "weights", has_data)
    norm = _with_data("norm", norm, ("recalibrate",), "analytic", has_data)
    if alpha is None:
        alpha = DEFAULT_ALPHA if method == "partial-ot" else 0.0
    return Recipe(method, features, align, norm, convention, alpha, mix, seed)


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
