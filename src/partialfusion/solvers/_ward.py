"""Compiled: Ward's method, greedy and stochastic.

Clusters are merged on the matrix of merge costs, the growth of the inertia when two clusters become one. A cluster is
known by its first channel. Every row keeps its cheapest later partner; a row whose partner has gone keeps the old
cost as a lower bound and is searched again only when it is about to be chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Bools, Floats, Ints
from ._jit import kernel, overwrite, seeded, uniform
from ._lloyd import settle, space

CHOICES = 5  # row minima among which the stochastic method draws


class Rows(NamedTuple):
    """Clusters to be merged; all arrays but `costs` are (n,).

    costs: (n × n) merge costs.
    masses: of the clusters.
    least: the row's least cost among later columns, infinite where there is none; a lower bound where stale.
    partner: the column of that cost.
    stale: the partner has gone or changed.
    gone: infinite for what has been merged into another, else zero.
    """

    costs: Floats
    masses: Floats
    least: Floats
    partner: Ints
    stale: Bools
    gone: Floats


@kernel
def empty_rows(n: int) -> Rows:
    """Space for n rows."""
    costs, masses, least, gone = np.empty((n, n)), np.empty(n), np.empty(n), np.empty(n)
    return Rows(costs, masses, least, np.empty(n, np.int64), np.empty(n, np.bool_), gone)


@kernel
def rows_of(squared: Floats, masses: Floats) -> Rows:
    """Every channel a cluster: the cost of i and j is m_i m_j / (m_i + m_j) · D_ij."""
    n = len(masses)
    r = empty_rows(n)
    for i in range(n):
        r.masses[i], r.gone[i] = masses[i], 0.0
        for j in range(n):
            r.costs[i, j] = squared[i, j] * (masses[i] * masses[j] / (masses[i] + masses[j]))
    for i in range(n):
        search(r, i)
    return r


@kernel
def copy(source: Rows, target: Rows) -> None:
    """Make one set of rows equal to another."""
    overwrite(target.costs, source.costs)
    overwrite(target.masses, source.masses)
    overwrite(target.least, source.least)
    overwrite(target.partner, source.partner)
    overwrite(target.stale, source.stale)
    overwrite(target.gone, source.gone)


@kernel
def search(r: Rows, i: int) -> None:
    """Find the cheapest later partner of row i. First the cost, then where it is: both loops run on whole vectors."""
    row, gone, n = r.costs[i], r.gone, len(r.gone)
    least = np.inf
    for j in range(i + 1, n):
        least = min(least, row[j] + gone[j])
    r.least[i], r.partner[i], r.stale[i] = least, -1, False
    if least < np.inf:
        j = i + 1
        while row[j] + gone[j] != least:
            j += 1
        r.partner[i] = j


@kernel
def candidates(r: Rows, best: Ints, price: Floats) -> int:
    """Fill best and price with the rows of least minima, ascending, and return how many there are."""
    while True:
        found = 0
        for i in range(len(r.least)):
            cost = r.least[i]
            if found < len(best):
                if cost == np.inf:
                    continue
                found += 1
            elif cost >= price[found - 1]:
                continue
            at = found - 1
            while at > 0 and price[at - 1] > cost:
                price[at], best[at] = price[at - 1], best[at - 1]
                at -= 1
            price[at], best[at] = cost, i
        exact = True
        for at in range(found):
            if r.stale[best[at]]:
                search(r, best[at])
                exact = False
        if exact:
            return found


@kernel
def draw(price: Floats, found: int, state: NDArray[np.uint64]) -> int:
    """One of the candidates: with c = √(2·price), in proportion to exp(−(c − c_min) / mean(c − c_min))."""
    chance = np.empty(found)
    mean = 0.0
    for at in range(found):
        chance[at] = np.sqrt(2.0 * price[at]) - np.sqrt(2.0 * price[0])
        mean += chance[at] / found
    everything = 0.0
    for at in range(found):
        chance[at] = np.exp(-chance[at] / mean) if mean > 0.0 else 1.0
        everything += chance[at]
    left = uniform(state) * everything
    for at in range(found):
        left -= chance[at]
        if left < 0.0:
            return at
    return found - 1


@kernel
def merge(r: Rows, i: int, j: int) -> None:
    """Merge cluster j into cluster i < j; costs by the formula of Lance and Williams."""
    n, mi, mj, together = len(r.masses), r.masses[i], r.masses[j], r.costs[i, j]
    into, other = r.costs[i], r.costs[j]
    for q in range(n):
        m = r.masses[q]
        into[q] = max(((mi + m) * into[q] + (mj + m) * other[q] - m * together) / (mi + mj + m), 0.0)
    r.masses[i] = mi + mj
    r.gone[j], r.least[j] = np.inf, np.inf
    for q in range(n):
        if r.gone[q] == 0.0 and q != i:
            r.costs[q, i] = into[q]
    for q in range(i):
        if r.gone[q] == 0.0:
            if into[q] <= r.least[q]:
                r.least[q], r.partner[q], r.stale[q] = into[q], i, False
            elif r.partner[q] == i or r.partner[q] == j:
                r.stale[q] = True
    for q in range(i + 1, j):
        if r.partner[q] == j:
            r.stale[q] = True
    search(r, i)


@kernel
def agglomerate(r: Rows, k: int, choices: int, state: NDArray[np.uint64]) -> Ints:
    """(n,) labels after merging down to k clusters: at every step the cheapest pair, or one drawn among `choices`."""
    n = len(r.masses)
    into, labels = np.arange(n), np.empty(n, np.int64)
    best, price = np.empty(choices, np.int64), np.empty(choices)
    for _ in range(n - k):
        found = candidates(r, best, price)
        i = best[draw(price, found, state) if choices > 1 else 0]
        j = r.partner[i]
        into[j] = i
        merge(r, i, j)
    clusters = 0
    for i in range(n):
        if into[i] == i:
            labels[i] = clusters
            clusters += 1
        else:
            labels[i] = labels[into[i]]
    return labels


@kernel
def greedy(squared: Floats, masses: Floats, k: int) -> Ints:
    """(n,) labels of Ward's method."""
    return agglomerate(rows_of(squared, masses), k, 1, seeded(np.uint64(0), 0))


@kernel
def drawn(squared: Floats, masses: Floats, k: int, state: NDArray[np.uint64]) -> Ints:
    """(n,) labels of one run of the stochastic method."""
    return agglomerate(rows_of(squared, masses), k, CHOICES, state)


@kernel
def restarts(
    squared: Floats, masses: Floats, start: Rows, k: int, first: int, last: int, seed: np.uint64
) -> tuple[float, Ints]:
    """The best of the stochastic runs first … last − 1, each ended by Lloyd's iteration: inertia and labels (n,).

    start: the rows of single channels, the same for all runs.
    """
    n = len(masses)
    r = empty_rows(n)
    reach, weight, within = space(n, k)
    best, lowest = np.empty(n, np.int64), np.inf
    for run in range(first, last):
        copy(start, r)
        labels = agglomerate(r, k, CHOICES, seeded(seed, run))
        inertia = settle(squared, masses, labels, reach, weight, within)
        if inertia < lowest:
            lowest, best = inertia, labels
    return lowest, best
