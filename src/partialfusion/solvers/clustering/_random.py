"""Compiled: random numbers, the same on every machine and for any number of threads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._jit import fast


@fast
def scramble(x: np.uint64) -> np.uint64:
    """A bijection of 64 bits that leaves no pattern of its argument (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@fast
def seeded(seed: np.uint64, stream: int) -> NDArray[np.uint64]:
    """(1,) the state of a random generator, another one for every stream of a seed."""
    random = np.empty(1, np.uint64)
    random[0] = scramble(seed + scramble(np.uint64(stream) + np.uint64(0x9E3779B97F4A7C15)))
    return random


@fast
def uniform(random: NDArray[np.uint64]) -> float:
    """The next number of [0, 1); advances the generator."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    return (scramble(random[0]) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@fast
def below(random: NDArray[np.uint64], n: int) -> int:
    """The next of 0 … n − 1; advances the generator."""
    return int(uniform(random) * n)
