"""Compiled: the cheapest matchings of every size, one augmenting path after another."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from ..core.arrays import Floats, Ints
from ._jit import exact

# Columns that a row remembers. Fewer are searched again more often, more take longer to go through.
NEAREST = 8
NONE = -1


class Columns(NamedTuple):
    """The columns' side of a matching and of its proof.

    Attributes:
        price: (m,) at most 0, and 0 while a column is free; for a column in the forest, its price when it joined.
        joined: (m,) the level at which the column joined the forest, infinite outside.
        owner: (m,) its row, or NONE.
        parent: (m,) the row that brought it into the forest.
    """

    price: Floats
    joined: Floats
    owner: Ints
    parent: Ints


class Rows(NamedTuple):
    """The rows' side; `near`, `cost` and `beyond` save most searches through whole rows of the cost matrix.

    Attributes:
        mate: (n,) its column, or NONE.
        root: (n,) the free row whose tree it belongs to, NONE outside the forest.
        lead: (n,) its price less the level, while it is in the forest.
        key: (n,) no edge out of the forest becomes tight at this row before this level.
        near: (n × NEAREST) the columns that were nearest when last searched: least cost − price.
        cost: (n × NEAREST) their costs.
        beyond: (n,) cost − price of every other column is at least this, now and later, as prices only fall.
    """

    mate: Ints
    root: Ints
    lead: Floats
    key: Floats
    near: Ints
    cost: Floats
    beyond: Floats


@exact
def matchings(cost: Floats, sizes: Ints) -> Ints:
    """The cheapest matchings of several sizes.

    All free rows have the same price, the level, which rises from the least cost; free columns have the price 0. A
    pair is tight where the prices of its row and column add up to its cost; they never exceed it, and matched pairs are
    tight, which proves the matching optimal for its size. Every free row is the root of a tree of tight pairs. In the
    forest of these trees, prices of rows rise with the level and prices of columns fall, so that its pairs stay tight.
    When a pair that leaves the forest becomes tight, the tree grows by a matched column and its row; or, where the
    column is free, the matching grows by one along the tree's path, and only this tree leaves the forest.

    Args:
        cost: (n × m), finite, C-contiguous.
        sizes: (s,) ascending, 0 … min(n, m).

    Returns:
        (s × n) the column of every row, NONE where it stays free.
    """
    n, m = cost.shape
    found = np.full((len(sizes), n), NONE)
    columns = Columns(np.zeros(m), np.full(m, np.inf), np.full(m, NONE), np.full(m, NONE))
    width = min(NEAREST, m)
    near, kept = np.zeros((n, width), np.int64), np.empty((n, width))
    rows = Rows(np.full(n, NONE), np.arange(n), np.zeros(n), np.empty(n), near, kept, np.empty(n))
    level = -np.inf
    heap = []
    for i in range(n):
        rows.key[i], _ = _search(cost, i, rows, columns, level)
        heap.append((rows.key[i], i))
    heapify(heap)
    size = 0
    for s in range(len(sizes)):
        while size < sizes[s]:
            key, i = heappop(heap)
            if rows.root[i] == NONE or key != rows.key[i]:
                continue  # written before the row left the forest, or before its key changed
            value, j = _remembered(i, rows, columns)
            if value > rows.beyond[i] or (value == rows.beyond[i] and columns.owner[j] != NONE):
                value, j = _search(cost, i, rows, columns, level)
            if value - rows.lead[i] > key:
                _set_key(i, value - rows.lead[i], rows, heap)
                continue
            level = max(level, key)
            if columns.owner[j] == NONE:
                _match(i, j, rows, columns)
                if _release(rows.root[i], level, rows, columns):
                    _lower_keys(rows, columns, heap)
                size += 1
            else:
                _grow(cost, i, j, level, rows, columns, heap)
        found[s] = rows.mate
    return found


@exact
def _search(cost: Floats, i: int, rows: Rows, columns: Columns, level: float) -> tuple[float, int]:
    """The least cost − price of row i outside the forest and its column, a free one among equals; renews `near`."""
    near, values = rows.near[i], rows.cost[i]
    values[:] = np.inf
    last = len(near) - 1
    least, best = np.inf, NONE
    for j in range(cost.shape[1]):
        value = cost[i, j] - columns.price[j] + max(0.0, level - columns.joined[j])
        if value > least and value >= values[last]:
            continue
        outside = columns.joined[j] == np.inf
        if outside and (value < least or (value == least and columns.owner[j] == NONE)):
            least, best = value, j
        if value < values[last]:
            p = last
            while p > 0 and values[p - 1] > value:
                values[p], near[p] = values[p - 1], near[p - 1]
                p -= 1
            values[p], near[p] = value, j
    rows.beyond[i] = values[last] if last + 1 < cost.shape[1] else np.inf
    for p in range(last + 1):
        values[p] = cost[i, near[p]]
    return least, best


@exact
def _remembered(i: int, rows: Rows, columns: Columns) -> tuple[float, int]:
    """What `_search` gives, among the remembered columns."""
    least, best = np.inf, NONE
    for p in range(rows.near.shape[1]):
        j = rows.near[i, p]
        if columns.joined[j] == np.inf:
            value = rows.cost[i, p] - columns.price[j]
            if value < least or (value == least and columns.owner[j] == NONE):
                least, best = value, j
    return least, best


@exact
def _set_key(i: int, key: float, rows: Rows, heap: list[tuple[float, int]]) -> None:
    rows.key[i] = key
    heappush(heap, (key, i))


@exact
def _grow(
    cost: Floats, i: int, j: int, level: float, rows: Rows, columns: Columns, heap: list[tuple[float, int]]
) -> None:
    """Column j and its row join the tree of row i, which then looks for its next column."""
    heappush(heap, (rows.key[i], i))
    row = columns.owner[j]
    columns.parent[j] = i
    columns.joined[j] = level
    rows.root[row] = rows.root[i]
    rows.lead[row] = cost[row, j] - columns.price[j] - level
    value, _ = _remembered(row, rows, columns)
    _set_key(row, min(value, rows.beyond[row]) - rows.lead[row], rows, heap)


@exact
def _match(i: int, j: int, rows: Rows, columns: Columns) -> None:
    """Match row i with the free column j, its parent with the column that i had, and so on up to the root."""
    while j != NONE:
        before = rows.mate[i]
        rows.mate[i], columns.owner[j] = j, i
        j = before
        i = columns.parent[j]


@exact
def _release(root: int, level: float, rows: Rows, columns: Columns) -> int:
    """Take a tree out of the forest; returns how many columns it had."""
    count = 0
    for i in range(len(rows.root)):
        if rows.root[i] == root:
            rows.root[i] = NONE
            j = rows.mate[i]
            if columns.joined[j] < np.inf:
                columns.price[j] -= level - columns.joined[j]
                columns.joined[j] = np.inf
                count += 1
    return count


@exact
def _lower_keys(rows: Rows, columns: Columns, heap: list[tuple[float, int]]) -> None:
    """Columns outside the forest, which have just been in it, may become tight before any other."""
    for i in range(len(rows.root)):
        if rows.root[i] != NONE:
            value, _ = _remembered(i, rows, columns)
            key = min(value, rows.beyond[i]) - rows.lead[i]
            if key < rows.key[i]:
                _set_key(i, key, rows, heap)
