"""Compiled: greedy pairing, for `zip.py`."""

from __future__ import annotations

import numpy as np

from ...core.arrays import Ints
from .._jit import fast


@fast
def pair_up(first: Ints, second: Ints, n: int, most: int) -> Ints:
    """(n,) labels after at most `most` of the pairs, taken in their order where both are still free."""
    into, taken = np.arange(n), 0
    free = np.ones(n, np.bool_)
    for p in range(len(first)):
        if taken == most:
            break
        i, j = first[p], second[p]
        if free[i] and free[j]:
            free[i] = free[j] = False
            into[j] = i
            taken += 1
    return into
