"""Compiled: Ward's method, greedy and stochastic.

Clusters are merged on the matrix of merge costs, the growth of the inertia when two clusters become one. A cluster is
known by its first channel. Every row keeps its cheapest later partner; a row whose partner was merged keeps the old
cost as a lower bound and is searched again only when it is about to be chosen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import Bools, Floats, Ints
from .._jit import fast
from ._lloyd import iterate, workspace
from ._random import seeded, uniform

CHOICES = 5  # row minima among which the stochastic method draws


class Rows(NamedTuple):
    """Clusters to be merged, one a row.

    Attributes:
        costs: (n × n) merge costs.
        masses: (n,) masses of the clusters.
        least: (n,) the row's least cost among later columns, infinite where there is none; a lower bound where stale.
        partner: (n,) the column of that cost.
        stale: (n,) whether the partner has been merged or changed.
        merged: (n,) infinite for a cluster that has been merged into another, else zero.
    """

    costs: Floats
    masses: Floats
    least: Floats
    partner: Ints
    stale: Bools
    merged: Floats


@fast
def empty_rows(n: int) -> Rows:
    """Space for n rows."""
    costs, masses, least, merged = np.empty((n, n)), np.empty(n), np.empty(n), np.empty(n)
    return Rows(costs, masses, least, np.empty(n, np.int64), np.empty(n, np.bool_), merged)


@fast
def rows_of(squared: Floats, masses: Floats) -> Rows:
    """Every channel a cluster: the cost of i and j is m_i m_j / (m_i + m_j) · D_ij."""
    n = len(masses)
    rows = empty_rows(n)
    for i in range(n):
        rows.masses[i], rows.merged[i] = masses[i], 0.0
        for j in range(n):
            rows.costs[i, j] = squared[i, j] * (masses[i] * masses[j] / (masses[i] + masses[j]))
    for i in range(n):
        search(rows, i)
    return rows


@fast
def overwrite(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy one contiguous array into another of its shape; a slice assignment takes seconds to compile."""
    into, values = target.reshape(-1), source.reshape(-1)
    for i in range(len(values)):
        into[i] = values[i]


@fast
def copy(source: Rows, target: Rows) -> None:
    """Make one set of rows equal to another."""
    overwrite(target.costs, source.costs)
    overwrite(target.masses, source.masses)
    overwrite(target.least, source.least)
    overwrite(target.partner, source.partner)
    overwrite(target.stale, source.stale)
    overwrite(target.merged, source.merged)


@fast
def search(rows: Rows, i: int) -> None:
    """Find the cheapest later partner of row i. First the cost, then where it is: both loops run on whole vectors."""
    row, merged, n = rows.costs[i], rows.merged, len(rows.merged)
    least = np.inf
    for j in range(i + 1, n):
        least = min(least, row[j] + merged[j])
    rows.least[i], rows.partner[i], rows.stale[i] = least, -1, False
    if least < np.inf:
        j = i + 1
        while row[j] + merged[j] != least:
            j += 1
        rows.partner[i] = j


@fast
def candidates(rows: Rows, best: Ints, price: Floats) -> int:
    """Fill best and price with the rows of least minima, ascending, and return how many there are."""
    while True:
        found = 0
        for i in range(len(rows.least)):
            cost = rows.least[i]
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
            if rows.stale[best[at]]:
                search(rows, best[at])
                exact = False
        if exact:
            return found


@fast
def draw(price: Floats, found: int, random: NDArray[np.uint64]) -> int:
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
    left = uniform(random) * everything
    for at in range(found):
        left -= chance[at]
        if left < 0.0:
            return at
    return found - 1


@fast
def merge(rows: Rows, i: int, j: int) -> None:
    """Merge cluster j into cluster i < j; costs by the formula of Lance and Williams."""
    n, mi, mj, together = len(rows.masses), rows.masses[i], rows.masses[j], rows.costs[i, j]
    into, other = rows.costs[i], rows.costs[j]
    for q in range(n):
        m = rows.masses[q]
        into[q] = max(((mi + m) * into[q] + (mj + m) * other[q] - m * together) / (mi + mj + m), 0.0)
    rows.masses[i] = mi + mj
    rows.merged[j], rows.least[j] = np.inf, np.inf
    for q in range(n):
        if rows.merged[q] == 0.0 and q != i:
            rows.costs[q, i] = into[q]
    for q in range(i):
        if rows.merged[q] == 0.0:
            if into[q] <= rows.least[q]:
                rows.least[q], rows.partner[q], rows.stale[q] = into[q], i, False
            elif rows.partner[q] == i or rows.partner[q] == j:
                rows.stale[q] = True
    for q in range(i + 1, j):
        if rows.partner[q] == j:
            rows.stale[q] = True
    search(rows, i)


@fast
def agglomerate(rows: Rows, k: int, choices: int, random: NDArray[np.uint64]) -> Ints:
    """(n,) labels after merging down to k clusters: at every step the cheapest pair, or one drawn among `choices`."""
    n = len(rows.masses)
    into, labels = np.arange(n), np.empty(n, np.int64)
    best, price = np.empty(choices, np.int64), np.empty(choices)
    for _ in range(n - k):
        found = candidates(rows, best, price)
        i = best[draw(price, found, random) if choices > 1 else 0]
        j = rows.partner[i]
        into[j] = i
        merge(rows, i, j)
    clusters = 0
    for i in range(n):
        if into[i] == i:
            labels[i] = clusters
            clusters += 1
        else:
            labels[i] = labels[into[i]]
    return labels


@fast
def greedy(squared: Floats, masses: Floats, k: int) -> Ints:
    """(n,) labels of Ward's method."""
    return agglomerate(rows_of(squared, masses), k, 1, seeded(np.uint64(0), 0))


@fast
def stochastic(squared: Floats, masses: Floats, k: int, random: NDArray[np.uint64]) -> Ints:
    """(n,) labels of one run of the stochastic method."""
    return agglomerate(rows_of(squared, masses), k, CHOICES, random)


@fast
def restarts(
    squared: Floats, masses: Floats, start: Rows, k: int, first: int, last: int, seed: np.uint64
) -> tuple[float, Ints]:
    """The best of the stochastic runs first … last − 1, each ended by Lloyd's iteration: inertia and labels (n,).

    The rows of `start` are single channels, the same for all runs.
    """
    n = len(masses)
    rows = empty_rows(n)
    distance_sums, cluster_mass, within = workspace(n, k)
    best, lowest = np.empty(n, np.int64), np.inf
    for run in range(first, last):
        copy(start, rows)
        labels = agglomerate(rows, k, CHOICES, seeded(seed, run))
        inertia = iterate(squared, masses, labels, distance_sums, cluster_mass, within)
        if inertia < lowest:
            lowest, best = inertia, labels
    return lowest, best
