"""Numbers and seeds as users give them, those of NumPy included."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard

from ..errors import OptionError

LARGEST = 2**63 - 1  # what the generators of torch and NumPy both take


def check_seed(seed: object, option: str = "seed") -> int:
    """The seed as an int; NumPy's integers are taken too."""
    whole = int(seed) if is_whole(seed) else -1
    if not 0 <= whole <= LARGEST:
        raise OptionError(f"{option}={seed!r} must be a whole number from 0 to {LARGEST}")
    return whole


def check_flag(given: object, option: str) -> bool:
    """An option that is yes or no as a bool; NumPy's bools are taken too, and no text, of which "no" would be yes."""
    import numpy as np  # the help of the command line, which needs the rest of this file, does without

    if not isinstance(given, bool | np.bool_):
        raise OptionError(f"{option}={given!r} must be True or False")
    return bool(given)


def is_whole(value: object) -> TypeGuard[Integral]:
    """Whether a value is a whole number, of Python or of NumPy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a real number, of Python or of NumPy; bools are none, nor is what no float holds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True
