"""Assignment: the cheapest one-to-one matchings of all rows and columns, or of a given number of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.arrays import Floats, Ints
from ..errors import DataError, OptionError

Matching = tuple[Ints, Ints]

HUGE = 1e288  # sums of so many costs as there may be channels stay finite up to here


class Prices:
    """What columns cost in the last assignment that was solved with it; the next one, of a similar cost, begins there.

    The matching is as cheap as from no prices; only among equally cheap ones it may be another.
    """

    def __init__(self) -> None:
        self.values: Floats | None = None


def assignment(cost: Floats, prices: Prices | None = None) -> Matching:
    """The cheapest one-to-one matching of as many rows and columns as there are.

    Args:
        cost: (n × m), finite.
        prices: where to begin, and where to leave what the next solve may begin with.

    Returns:
        rows (ascending) and columns, min(n, m) each.
    """
    cost = _readable(cost)
    largest = _check(cost, [])
    if cost.shape[0] > cost.shape[1]:
        cols, rows = assignment(cost.T)
        order = np.argsort(rows)
        return rows[order], cols[order]
    if cost.size == 0:
        return _pairs(np.empty(0, np.int64))
    from ._full_assignment import full_matching  # loads Numba

    values = None if prices is None else prices.values
    known = values is not None and cost.shape == (len(values),) * 2
    if values is None or not known:
        values = np.empty(cost.shape[1])
    found = full_matching(_small(cost, largest), values, known)
    if prices is not None:
        prices.values = values
    return _pairs(found)


def block_assignments(cost: Floats, ours: Ints, theirs: Ints) -> tuple[Ints, Floats]:
    """The cheapest one-to-one matchings of every block of rows with every block of columns.

    Args:
        cost: (n × m), finite.
        ours: (h × s) the rows of each block.
        theirs: (g × s) the columns of each block.

    Returns:
        (h × g × s) which column of the block every row has, and (h × g) what the matchings cost.
    """
    cost = _readable(cost)
    largest = _check(cost, [])
    from ._full_assignment import block_matchings  # loads Numba

    found: tuple[Ints, Floats] = block_matchings(_small(cost, largest), ours, theirs)
    return found


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
    less time than to match all of them, for which `assignment` is faster. Sizes need not be sorted, a matching need
    not be part of a larger one, and among equally cheap ones each is the one that its size alone would give.

    Args:
        cost: (n × m), finite.
        sizes: numbers of pairs, each 0 … min(n, m).

    Returns:
        for every size, rows (ascending) and columns.
    """
    cost = _readable(cost)
    _check(cost, sizes)
    none, full = 0, min(cost.shape)
    found = {none: _pairs(np.empty(0, np.int64))}
    if full in sizes:
        found[full] = assignment(cost)
    if steps := sorted(set(sizes) - {none, full}):
        from ._assignment import matchings  # loads Numba

        found.update(zip(steps, map(_pairs, matchings(cost, np.asarray(steps, np.int64))), strict=True))
    return [found[k] for k in sizes]


def _small(cost: Floats, largest: float) -> Floats:
    """The cost, on another scale where sums of it might be infinite."""
    return cost * 2.0**-64 if largest > HUGE else cost


def _largest(cost: Floats) -> float:
    """The largest absolute value; NaN where there is one."""
    return float(max(cost.max(), -cost.min())) if cost.size else 0.0


def _readable(cost: Floats) -> Floats:
    """The cost as compiled code reads it, never written; to Numba a read-only array is another type."""
    return np.require(cost, np.float64, ["C", "W"])


def _check(cost: Floats, sizes: Sequence[int]) -> float:
    """The largest absolute value of a cost that can be solved for matchings of these sizes."""
    if cost.ndim != 2:
        raise OptionError(f"a cost is a matrix of rows and columns, not of shape {cost.shape}")
    most = min(cost.shape)
    for k in sizes:
        if not 0 <= k <= most:
            raise OptionError(f"cannot match {k} pairs in a cost of shape {cost.shape}: k must be 0 … {most}")
    largest = _largest(cost)
    if not np.isfinite(largest):
        raise DataError(f"the cost of shape {cost.shape} holds NaN or infinite entries: every pair needs a finite cost")
    return largest


def _pairs(mates: Ints) -> Matching:
    """Rows and columns, from the column of every row or −1."""
    rows = np.flatnonzero(mates >= 0)
    return rows, mates[rows]
