"""What a user allows a result to cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.scalars import is_number
from ...errors import OptionError
from .sizes import NAMES, Sizes

RELATIVE = 64  # whole numbers up to here are multiples of one model, larger ones counts
FAR = 1e9  # times one model, which no result reaches: larger bounds bound no more, and their powers are no floats


@dataclass(frozen=True)
class Budget:
    """Upper bounds on a result; what is None is not bounded, and what is given must all hold.

    A number with a point is relative to the last model: 1.3 is thirty percent more. A whole number above 64 is a
    count. All but `params` are costs of the module that is returned; `params` is what it holds as blocks and in a file.

    Attributes:
        dense: parameters of the module. A plain number as a budget means this.
        params: effective parameters, without the zero blocks.
        flops: multiplications and additions of one call with the example inputs.
        latency: time of one call with the example inputs, measured on this machine, relative to the last model.
        channels: channels of all elastic spaces together.
    """

    params: float | int | None = None
    flops: float | int | None = None
    channels: float | int | None = None
    dense: float | int | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, name) is None for name in NAMES):
            raise OptionError(f"a budget bounds at least one of {', '.join(NAMES)}")
        for name in NAMES:
            value = getattr(self, name)
            if value is None:
                continue
            if not is_number(value) or not math.isfinite(value) or value <= 0:
                raise OptionError(f"{name}={value!r} of a budget must be a number above 0, such as 1.3")
        if self.latency is not None and self.latency > RELATIVE:
            raise OptionError(f"latency={self.latency!r} of a budget is relative to one model, such as 1.3")

    @classmethod
    def of(cls, given: Any) -> Budget:
        """A user's option: a number means the dense parameters."""
        return given if isinstance(given, Budget) else cls(dense=given)

    def __str__(self) -> str:
        """The bounds in words; a plain number bounds the dense parameters."""
        given = {name: getattr(self, name) for name in NAMES if getattr(self, name) is not None}
        if list(given) == ["dense"]:
            return f"{given['dense']:g}"
        return ", ".join(f"{name} {value:g}" for name, value in given.items())

    @property
    def effective(self) -> bool:
        """Whether the effective parameters are bounded, which grow where zero blocks are filled."""
        return self.params is not None

    def limits(self, single: Sizes) -> Sizes:
        """The bounds as counts, given the sizes of the last model; infinite where nothing is bounded."""
        return Sizes(**{name: _limit(getattr(self, name), getattr(single, name)) for name in NAMES})


def _limit(value: float | int | None, single: float) -> float:
    if value is None:
        return math.inf
    if value > RELATIVE and isinstance(value, int | np.integer):
        return min(float(value), FAR * max(single, 1.0))
    return min(float(value), FAR) * single
