"""How the kernels are compiled, and the random numbers they draw.

Only modules whose name begins with an underscore import Numba, and they are imported at the first use: loading takes a
good part of a second. Compiling takes some seconds, once; the result stays in __pycache__.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered, which lets loops run on whole vectors. Infinity stays legal: it marks what is not there.
FAST: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "nnan"}}

# Numba compiles a kernel anew when its file has changed, not when those it calls have: all their files count as one.
STAMP = tuple((p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(Path(__file__).parent.glob("_*.py")))


def kernel(function: Function) -> Function:
    """Compile a function on arrays for speed."""
    return _compiled(function, FAST)


def exact(function: Function) -> Function:
    """Compile a function whose comparisons count on sums as they are written."""
    return _compiled(function, {})


def _compiled(function: Function, options: dict[str, Any]) -> Function:
    """Machine code, free of the interpreter's lock, and kept on disk where that is possible."""
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no directory for the cache can be written
        compiled = numba.njit(nogil=True, **options)(function)
    stored = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if stored is not None:
        stored._source_stamp = STAMP
    found: Function = compiled
    return found


@kernel
def scramble(x: np.uint64) -> np.uint64:
    """A bijection of 64 bits that leaves no pattern of its argument (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def seeded(seed: np.uint64, stream: int) -> NDArray[np.uint64]:
    """(1,) the state of a generator of its own for every stream of a seed."""
    state = np.empty(1, np.uint64)
    state[0] = scramble(seed + scramble(np.uint64(stream) + np.uint64(0x9E3779B97F4A7C15)))
    return state


@kernel
def uniform(state: NDArray[np.uint64]) -> float:
    """The next number of [0, 1); moves the state."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return (scramble(state[0]) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def below(state: NDArray[np.uint64], n: int) -> int:
    """The next of 0 … n − 1; moves the state."""
    return int(uniform(state) * n)


@kernel
def overwrite(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy one contiguous array into another of its shape; a slice assignment takes seconds to compile."""
    into, values = target.reshape(-1), source.reshape(-1)
    for i in range(len(values)):
        into[i] = values[i]
