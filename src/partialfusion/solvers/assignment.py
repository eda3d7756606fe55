"""Assignment: the cheapest one-to-one matchings of all rows and columns, or of a given number of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..core.arrays import Floats, Ints
from ..errors import DataError, OptionError

Matching = tuple[Ints, Ints]


def assignment(cost: Floats) -> Matching:
    """The cheapest one-to-one matching of an (n × n) cost: rows 0…n−1 and their columns."""
    rows, cols = linear_sum_assignment(cost)
    return rows.astype(np.int64), cols.astype(np.int64)


def partial_assignment(cost: Floats, k: int) -> Matching:
    """The cheapest way to match exactly k rows with k columns.

    Args:
        cost: (n × m), finite.
        k: number of pairs, 0 … min(n, m).

    Returns:
        rows (ascending) and columns, k each.
    """
    return partial_assignments(cost, [k])[0]


def partial_assignments(cost: Floats, sizes: Sequence[int]) -> list[Matching]:
    """The cheapest matchings of several sizes, for little more than that of the largest.

    A cheapest matching of k pairs becomes one of k + 1 pairs along one alternating path, so all sizes lie on one way
    from the empty to the full matching. The last steps of it are the longest: to leave a few rows alone costs far
    less time than to match all of them, and that is left to SciPy. Sizes need not be sorted, a matching need not be
    part of a larger one, and among equally cheap ones each is the one that its size alone would give.

    Args:
        cost: (n × m), finite.
        sizes: numbers of pairs, each 0 … min(n, m).

    Returns:
        for every size, rows (ascending) and columns.
    """
    cost = np.require(cost, np.float64, ["C", "W"])  # never written; to Numba a read-only array is another type
    _check(cost, sizes)
    none, full = 0, min(cost.shape)
    found = {none: _pairs(np.empty(0, np.int64))}
    if full in sizes:
        found[full] = assignment(cost)
    if steps := sorted(set(sizes) - {none, full}):
        from ._assignment import matchings  # loads Numba

        found.update(zip(steps, map(_pairs, matchings(cost, np.asarray(steps, np.int64))), strict=True))
    return [found[k] for k in sizes]


def _check(cost: Floats, sizes: Sequence[int]) -> None:
    if cost.ndim != 2:
        raise OptionError(f"a cost is a matrix of rows and columns, not of shape {cost.shape}")
    most = min(cost.shape)
    for k in sizes:
        if not 0 <= k <= most:
            raise OptionError(f"cannot match {k} pairs in a cost of shape {cost.shape}: k must be 0 … {most}")
    if not np.isfinite(cost).all():
        raise DataError(f"the cost of shape {cost.shape} holds NaN or infinite entries: every pair needs a finite cost")


def _pairs(mates: Ints) -> Matching:
    """Rows and columns, from the column of every row or −1."""
    rows = np.flatnonzero(mates >= 0)
    return rows, mates[rows]
