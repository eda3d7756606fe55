"""The k-cardinality assignment problem: partial optimal transport between equally heavy channels."""

from __future__ import annotations

from itertools import count

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..errors import OptionError
from ..kernels.coupling import Floats, Ints
from .assignment import assignment

Matching = tuple[Ints, Ints]

# Tries to hit the size by interpolation; most problems need three or four.
INTERPOLATIONS = 10


def partial_assignment(cost: Floats, k: int) -> Matching:
    """The cheapest way to match exactly k rows with k columns.

    The least cost g(k) is convex in k, so k pairs are optimal for some price τ per pair: the matching that
    minimises Σ min(c − τ, 0), which is one linear assignment on the clipped cost. τ is interpolated between prices that
    give too few and too many pairs, then searched along chords of g, which is sure to end; where g is straight (ties),
    the matchings at both ends of the piece are joined along alternating paths.

    Args:
        cost: (n × m), finite.
        k: number of pairs, 0 … min(n, m).

    Returns:
        rows (ascending) and columns, k each.
    """
    cost = np.asarray(cost, np.float64)
    most = min(cost.shape)
    if not 0 <= k <= most:
        raise OptionError(f"cannot match {k} pairs in a cost of shape {cost.shape}: k must be 0 … {most}")
    none = np.empty(0, np.int64)
    if k == 0:
        return none, none
    full = assignment(cost)
    if k == most:
        return full
    low, high = (none, none), full
    below, above = float(cost.min()), float(cost.max())
    price = float(np.sort(cost[full])[k - 1 : k + 1].mean())
    for step in count():
        found = _at_price(cost, price)
        size = len(found[0])
        if size == k:
            return found
        if step >= INTERPOLATIONS and not len(low[0]) < size < len(high[0]):
            return _between(low, high, k)
        if size < k:
            below = price
            low = max(low, found, key=lambda m: len(m[0]))
        else:
            above = price
            high = min(high, found, key=lambda m: len(m[0]))
        least, most = len(low[0]), len(high[0])
        if step + 1 < INTERPOLATIONS:
            price = below + (above - below) * min(max((k - least) / (most - least), 0.05), 0.95)
        else:
            price = float((cost[high].sum() - cost[low].sum()) / (most - least))
    raise AssertionError("the chords of a convex function end")


def _at_price(cost: Floats, price: float) -> Matching:
    """The matching that gains most when a pair costs c − price and may be left out."""
    reduced = np.minimum(cost - price, 0.0)
    rows, cols = assignment(reduced)
    gains = reduced[rows, cols] < 0
    return rows[gains], cols[gains]


def _between(low: Matching, high: Matching, k: int) -> Matching:
    """A matching of k pairs from two matchings that are both optimal at one price.

    Their symmetric difference falls into alternating paths and cycles, each of value zero at that price; switching a
    component of `low` to `high` changes the size by −1, 0 or 1.
    """
    rows = np.concatenate([low[0], high[0]])
    cols = np.concatenate([low[1], high[1]])
    n, m = rows.max() + 1, cols.max() + 1
    graph = coo_array((np.ones(len(rows)), (rows, cols + n)), shape=(n + m, n + m))
    _, component = connected_components(graph, directed=False)
    of_low, of_high = component[low[0]], component[high[0]]
    growth = np.bincount(of_high, minlength=n + m) - np.bincount(of_low, minlength=n + m)
    growing = np.flatnonzero(growth == 1)[: k - len(low[0])]
    take = np.isin(of_high, growing)
    keep = ~np.isin(of_low, growing)
    rows = np.concatenate([low[0][keep], high[0][take]])
    cols = np.concatenate([low[1][keep], high[1][take]])
    order = np.argsort(rows)
    return rows[order], cols[order]
