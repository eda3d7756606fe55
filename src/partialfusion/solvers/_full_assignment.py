"""Compiled: the cheapest matching of all rows, after Jonker and Volgenant (1987), also from known prices on."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from ..core.arrays import Floats, Ints
from ._jit import exact

NONE = -1
ROUNDS = 2  # of row reduction
MOST = 60  # reductions for each free row of a round, at most: they are cheaper than paths
# Columns that a row remembers. Fewer are searched again more often, more take longer to go through.
NEAREST = 8


class Near(NamedTuple):
    """What rows remember, which saves most searches through whole rows of the cost matrix.

    Attributes:
        column: (n × NEAREST) the columns that were nearest when last searched: least cost − price.
        cost: (n × NEAREST) their costs.
        beyond: (n,) cost − price of every other column is at least this, now and later, as prices only fall; −∞ for a
            row that was not searched yet.
    """

    column: Ints
    cost: Floats
    beyond: Floats


@exact
def full_matching(cost: Floats, price: Floats, known: bool) -> Ints:
    """The cheapest matching of all rows.

    A column has a price, and a row takes what is left of its cost at its nearest column; a matching in which every
    row has one of its nearest columns is optimal. Reductions find prices that match most rows, and shortest
    augmenting paths match the rest.

    Args:
        cost: (n × m), n ≤ m, finite, C-contiguous.
        price: (m,) overwritten with the prices that prove the matching optimal.
        known: begin with the given prices, those of a similar cost; for n = m only, as a column that stays free has
            no price.

    Returns:
        (n,) the column of every row.
    """
    n, m = cost.shape
    mate, owner = np.full(n, NONE), np.full(m, NONE)
    if n < m:
        price[:] = 0.0
    elif not known:
        _reduce_columns(cost, price, mate, owner)
    width = min(NEAREST, m)
    near = Near(np.zeros((n, width), np.int64), np.zeros((n, width)), np.full(n, -np.inf))
    free = np.flatnonzero(mate == NONE)
    for _ in range(ROUNDS):
        free = _reduce_rows(cost, price, mate, owner, free, near)
    _augment(cost, price, mate, owner, free, near)
    return mate


@exact
def block_matchings(cost: Floats, ours: Ints, theirs: Ints) -> tuple[Ints, Floats]:
    """The cheapest matchings of every block of rows with every block of columns.

    Args:
        cost: (n × m), finite.
        ours: (h × s) the rows of each block.
        theirs: (g × t) the columns of each block, s ≤ t.

    Returns:
        (h × g × s) which column of the block every row has, and (h × g) what the matchings cost.
    """
    heads, size = ours.shape
    found, total = np.empty((heads, len(theirs), size), np.int64), np.zeros((heads, len(theirs)))
    part, price = np.empty((size, theirs.shape[1]), cost.dtype), np.empty(theirs.shape[1])
    for i in range(heads):
        for j in range(len(theirs)):
            for r in range(size):
                for c in range(theirs.shape[1]):
                    part[r, c] = cost[ours[i, r], theirs[j, c]]
            found[i, j] = full_matching(part, price, False)
            for r in range(size):
                total[i, j] += part[r, found[i, j, r]]
    return found, total


@exact
def _reduce_columns(cost: Floats, price: Floats, mate: Ints, owner: Ints) -> None:
    """The price of a column is its least cost; rows of one such column take it, and lower it as far as they can."""
    n, m = cost.shape
    nearest, times = np.zeros(m, np.int64), np.zeros(n, np.int64)
    price[:] = np.inf
    for i in range(n):
        for j in range(m):
            if cost[i, j] < price[j]:
                price[j], nearest[j] = cost[i, j], i
    for j in range(m - 1, -1, -1):
        i = nearest[j]
        times[i] += 1
        if mate[i] == NONE:
            mate[i], owner[j] = j, i
    for i in range(n):
        if times[i] == 1 and m > 1:
            j = mate[i]
            least = np.inf
            for other in range(m):
                if other != j:
                    least = min(least, cost[i, other] - price[other])
            price[j] -= least - (cost[i, j] - price[j])


@exact
def _reduce_rows(cost: Floats, price: Floats, mate: Ints, owner: Ints, free: Ints, near: Near) -> Ints:
    """Every free row takes its nearest column and lowers its price until the second nearest is as near; the row that
    loses it is the next, for a while. Returns the rows that are free afterwards."""
    waiting, left, k, count, reductions = free.copy(), np.empty(len(free), np.int64), 0, 0, 0
    while k < len(waiting):
        i = waiting[k]
        least, second, j, other = _two_nearest(cost, i, price, near)
        lower = price[j] - (second - least)
        lowers = other != NONE and lower < price[j]
        if lowers:
            price[j] = lower
        elif other != NONE and owner[j] != NONE:
            j = other
        before, owner[j], mate[i] = owner[j], i, j
        reductions += 1
        k += 1
        if before == NONE:
            continue
        mate[before] = NONE
        if lowers and reductions < MOST * len(waiting):
            k -= 1
            waiting[k] = before
        else:
            left[count] = before
            count += 1
    return left[:count].copy()


@exact
def _two_nearest(cost: Floats, i: int, price: Floats, near: Near) -> tuple[float, float, int, int]:
    """The two least values of cost − price of a row, and their columns."""
    for _ in range(2):
        least, second, best, other = np.inf, np.inf, NONE, NONE
        for p in range(near.column.shape[1]):
            j = near.column[i, p]
            value = near.cost[i, p] - price[j]
            if value < second:
                if value < least:
                    second, other = least, best
                    least, best = value, j
                else:
                    second, other = value, j
        if second <= near.beyond[i]:
            break
        _search(cost, i, price, near)
    return least, second, best, other


@exact
def _search(cost: Floats, i: int, price: Floats, near: Near) -> None:
    """Renew what a row remembers."""
    row, column, values = cost[i], near.column[i], near.cost[i]
    values[:] = np.inf
    last = len(column) - 1
    for j in range(len(row)):
        value = row[j] - price[j]
        if value < values[last]:
            p = last
            while p > 0 and values[p - 1] > value:
                values[p], column[p] = values[p - 1], column[p - 1]
                p -= 1
            values[p], column[p] = value, j
    near.beyond[i] = values[last] if last + 1 < len(row) else np.inf
    for p in range(last + 1):
        values[p] = row[column[p]]


class Paths(NamedTuple):
    """Alternating paths from a free row.

    Attributes:
        distance: (m,) the length of the shortest path to a column that is known.
        open: (m,) the same, −∞ for a column whose distance is final.
        parent: (m,) the last row on that path.
    """

    distance: Floats
    open: Floats
    parent: Ints


@exact
def _augment(cost: Floats, price: Floats, mate: Ints, owner: Ints, free: Ints, near: Near) -> None:
    """Match every free row along the shortest alternating path to a free column, and move prices along.

    Columns are reached in the order of their distance. A row offers the columns that it remembers; the others are
    no nearer than `beyond`, so it waits there, among the columns, for its turn to offer all of them.
    """
    m = cost.shape[1]
    paths = Paths(np.empty(m), np.empty(m), np.empty(m, np.int64))
    shift, order = np.empty(len(cost)), np.empty(m, np.int64)
    for start in free:
        paths.distance[:] = np.inf
        paths.open[:] = np.inf
        shift[start] = 0.0
        waiting = [(-np.inf, m + start)]  # distances of columns, and of rows that come after them
        count, end, level = 0, NONE, np.inf
        while len(waiting) > 0:
            reached, item = heappop(waiting)
            if reached >= level:
                break
            if item >= m:
                i = item - m
            elif reached != paths.open[item]:
                continue  # a shorter path was found
            else:
                paths.open[item] = -np.inf
                order[count] = item
                count += 1
                i = owner[item]
                shift[i] = cost[i, item] - price[item] - reached
            if item < m and near.beyond[i] > -np.inf:
                for p in range(near.column.shape[1]):
                    j = near.column[i, p]
                    end, level = _offer(i, j, near.cost[i, p] - price[j] - shift[i], owner, paths, waiting, end, level)
                if near.beyond[i] - shift[i] < level:
                    heappush(waiting, (near.beyond[i] - shift[i], m + i))
            else:
                _search(cost, i, price, near)
                for j in range(m):
                    value = cost[i, j] - price[j] - shift[i]
                    if value < level and value < paths.open[j]:
                        end, level = _offer(i, j, value, owner, paths, waiting, end, level)
        for k in range(count):
            price[order[k]] += paths.distance[order[k]] - level
        while end != NONE:
            i = paths.parent[end]
            owner[end] = i
            end, mate[i] = mate[i], end


@exact
def _offer(
    i: int,
    j: int,
    value: float,
    owner: Ints,
    paths: Paths,
    waiting: list[tuple[float, int]],
    end: int,
    level: float,
) -> tuple[int, float]:
    """Go to column j by row i if that is nearer; the nearest free column, and its distance."""
    if value < level and value < paths.open[j]:
        paths.distance[j] = paths.open[j] = value
        paths.parent[j] = i
        if owner[j] == NONE:
            return j, value
        heappush(waiting, (value, j))
    return end, level
