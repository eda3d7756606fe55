"""Compiled: the cheapest matching of all rows, after Jonker and Volgenant (1987), also from known prices on."""

from __future__ import annotations

import numpy as np

from ..core.arrays import Floats, Ints
from ._jit import bounds, exact

NONE = -1
ROUNDS = 2  # of row reduction
MOST = 20  # reductions for each free row of a round, at most


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
    free = np.flatnonzero(mate == NONE)
    for _ in range(ROUNDS):
        free = _reduce_rows(cost, price, mate, owner, free)
    _augment(cost, price, mate, owner, free)
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
def _reduce_rows(cost: Floats, price: Floats, mate: Ints, owner: Ints, free: Ints) -> Ints:
    """Every free row takes its nearest column and lowers its price until the second nearest is as near; the row that
    loses it is the next, for a while. Returns the rows that are free afterwards."""
    waiting, left, k, count, reductions = free.copy(), np.empty(len(free), np.int64), 0, 0, 0
    while k < len(waiting):
        i = waiting[k]
        least, second, j, other = _two_nearest(cost[i], price)
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
def _two_nearest(row: Floats, price: Floats) -> tuple[float, float, int, int]:
    """The two least values of cost − price, and their columns."""
    least, second, best, other = np.inf, np.inf, NONE, NONE
    for j in range(len(row)):
        value = row[j] - price[j]
        if value < second:
            if value < least:
                second, other = least, best
                least, best = value, j
            else:
                second, other = value, j
    return least, second, best, other


@exact
def _augment(cost: Floats, price: Floats, mate: Ints, owner: Ints, free: Ints) -> None:
    """Match every free row along the shortest alternating path to a free column, and move prices along."""
    m = cost.shape[1]
    distance, reached = np.empty(m), np.empty(m)  # infinite where a column is reached, otherwise 0
    parent, order = np.empty(m, np.int64), np.empty(m, np.int64)
    for start in free:
        distance[:] = np.inf
        reached[:] = 0.0
        _relax(cost[start], price, 0.0, start, distance, parent, reached)
        count, end, level = 0, NONE, 0.0
        while end == NONE:
            level = _least(distance, reached)
            first = count
            for j in range(m):
                if distance[j] == level and reached[j] == 0.0:
                    if owner[j] == NONE:
                        end = j
                        break
                    order[count] = j
                    count += 1
            if end != NONE:
                count = first  # prices of columns at the level of the end stay
                break
            for k in range(first, count):
                reached[order[k]] = np.inf
            for k in range(first, count):
                j = order[k]
                i = owner[j]
                _relax(cost[i], price, cost[i, j] - price[j] - level, i, distance, parent, reached)
        for k in range(count):
            price[order[k]] += distance[order[k]] - level
        while end != NONE:
            i = parent[end]
            owner[end] = i
            end, mate[i] = mate[i], end


@bounds
def _relax(row: Floats, price: Floats, shift: float, i: int, distance: Floats, parent: Ints, reached: Floats) -> None:
    """Shorten the distances of columns that are nearer by row i; those that are reached keep theirs."""
    for j in range(len(row)):
        value = row[j] - price[j] - shift + reached[j]
        nearer = value < distance[j]
        distance[j] = value if nearer else distance[j]
        parent[j] = i if nearer else parent[j]


@bounds
def _least(distance: Floats, reached: Floats) -> float:
    """The least distance of a column that is not reached."""
    least = np.inf
    for j in range(len(distance)):
        least = min(least, distance[j] + reached[j])
    return least
