"""Compiled: Lloyd's iteration on squared distances alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import Floats, Ints
from .._jit import fast
from ._random import below, seeded, uniform

ITERATIONS = 300
TIE = 1e-12  # relative; a channel between two centres stays where it is


@fast
def fill_sums(
    squared: Floats, masses: Floats, labels: Ints, distance_sums: Floats, cluster_mass: Floats, within: Floats
) -> None:
    """Sum over every cluster c, into the last three arguments.

    The squared distance of channel i to the centre of c is then
    distance_sums[c, i] / cluster_mass[c] − within[c] / cluster_mass[c]².

    Args:
        squared: (n × n) squared distances D.
        masses: (n,) masses m.
        labels: (n,) clusters of the channels.
        distance_sums: (k × n) becomes Σ_{j in c} m_j D_ij.
        cluster_mass: (k,) becomes Σ_{j in c} m_j.
        within: (k,) becomes Σ_{i, j in c} m_i m_j D_ij / 2.
    """
    n = len(labels)
    distance_sums[:] = 0.0
    cluster_mass[:] = 0.0
    within[:] = 0.0
    for j in range(n):
        c, m = labels[j], masses[j]
        cluster_mass[c] += m
        for i in range(n):
            distance_sums[c, i] += m * squared[j, i]
    for i in range(n):
        within[labels[i]] += 0.5 * masses[i] * distance_sums[labels[i], i]


@fast
def inertia_of(cluster_mass: Floats, within: Floats) -> float:
    """The inertia: Σ within / cluster_mass."""
    found = 0.0
    for c in range(len(cluster_mass)):
        if cluster_mass[c] > 0.0:
            found += within[c] / cluster_mass[c]
    return found


@fast
def fill_empty(masses: Floats, labels: Ints, counts: Ints, distance: Floats) -> None:
    """Give every empty cluster the channel that costs most where it is, among those that leave company behind."""
    for c in range(len(counts)):
        if counts[c] == 0:
            worst, who = -1.0, -1
            for i in range(len(labels)):
                if counts[labels[i]] > 1 and masses[i] * distance[i] > worst:
                    worst, who = masses[i] * distance[i], i
            counts[labels[who]] -= 1
            counts[c] = 1
            labels[who] = c
            distance[who] = 0.0


@fast
def iterate(
    squared: Floats, masses: Floats, labels: Ints, distance_sums: Floats, cluster_mass: Floats, within: Floats
) -> float:
    """Lloyd's iteration from labels (n,), changed in place, until no channel changes; returns the inertia.

    Every label 0 … k − 1 is in use afterwards. The last three arguments are a `workspace`.
    """
    n, k = len(labels), len(cluster_mass)
    counts = np.zeros(k, np.int64)
    nearest, current = np.empty(n), np.empty(n)
    target = np.empty(n, np.int64)
    for i in range(n):
        counts[labels[i]] += 1
    current[:] = 1.0
    fill_empty(masses, labels, counts, current)
    for _ in range(ITERATIONS):
        fill_sums(squared, masses, labels, distance_sums, cluster_mass, within)
        for i in range(n):
            c = labels[i]
            current[i] = max(distance_sums[c, i] / cluster_mass[c] - within[c] / cluster_mass[c] ** 2, 0.0)
            nearest[i] = current[i] * (1.0 - TIE)
            target[i] = c
        for c in range(k):
            scale, shift = 1.0 / cluster_mass[c], within[c] / cluster_mass[c] ** 2
            for i in range(n):
                d = distance_sums[c, i] * scale - shift
                if d < nearest[i]:
                    nearest[i] = d
                    target[i] = c
        moved = 0
        for i in range(n):
            if target[i] != labels[i]:
                counts[labels[i]] -= 1
                counts[target[i]] += 1
                labels[i] = target[i]
                current[i] = max(nearest[i], 0.0)
                moved += 1
        if moved == 0:
            break
        fill_empty(masses, labels, counts, current)
    else:
        fill_sums(squared, masses, labels, distance_sums, cluster_mass, within)
    return inertia_of(cluster_mass, within)


@fast
def workspace(n: int, k: int) -> tuple[Floats, Floats, Floats]:
    """Arrays for `iterate` to work in: those that `fill_sums` fills."""
    return np.empty((k, n)), np.empty(k), np.empty(k)


@fast
def plus_plus(squared: Floats, masses: Floats, k: int, random: NDArray[np.uint64]) -> Ints:
    """(n,) the nearest of k channels drawn as in k-means++, by mass times squared distance to those already drawn."""
    n = len(masses)
    distance, labels = np.ones(n), np.zeros(n, np.int64)
    for c in range(k):
        everything = 0.0
        for i in range(n):
            everything += masses[i] * distance[i]
        left, drawn = uniform(random) * everything, -1
        for i in range(n):
            if distance[i] > 0.0:
                drawn = i
                left -= masses[i] * distance[i]
                if left < 0.0:
                    break
        if drawn < 0:  # every channel equals one that was drawn
            drawn = below(random, n)
        for i in range(n):
            if c == 0 or squared[drawn, i] < distance[i]:
                distance[i] = squared[drawn, i]
                labels[i] = c
    return labels


@fast
def restarts(squared: Floats, masses: Floats, k: int, first: int, last: int, seed: np.uint64) -> tuple[float, Ints]:
    """The best of the starts first … last − 1: inertia and labels (n,)."""
    n = len(masses)
    distance_sums, cluster_mass, within = workspace(n, k)
    best, lowest = np.zeros(n, np.int64), np.inf
    for restart in range(first, last):
        labels = plus_plus(squared, masses, k, seeded(seed, restart))
        inertia = iterate(squared, masses, labels, distance_sums, cluster_mass, within)
        if inertia < lowest:
            lowest, best = inertia, labels
    return lowest, best
