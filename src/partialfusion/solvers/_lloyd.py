"""Compiled: Lloyd's iteration on squared distances alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Floats, Ints
from ._jit import below, kernel, seeded, uniform

ITERATIONS = 300
TIE = 1e-12  # relative; a channel between two centres stays where it is


@kernel
def sums(squared: Floats, masses: Floats, labels: Ints, reach: Floats, weight: Floats, within: Floats) -> None:
    """Fill reach (k × n): Σ_{j in c} m_j D_ij; weight (k,): Σ m_j; within (k,): Σ_{i,j in c} m_i m_j D_ij / 2.

    The squared distance of channel i to the centre of c is then reach[c, i] / weight[c] − within[c] / weight[c]².
    """
    n = len(labels)
    reach[:] = 0.0
    weight[:] = 0.0
    within[:] = 0.0
    for j in range(n):
        c, m = labels[j], masses[j]
        weight[c] += m
        for i in range(n):
            reach[c, i] += m * squared[j, i]
    for i in range(n):
        within[labels[i]] += 0.5 * masses[i] * reach[labels[i], i]


@kernel
def total(weight: Floats, within: Floats) -> float:
    """The inertia: Σ within / weight."""
    found = 0.0
    for c in range(len(weight)):
        if weight[c] > 0.0:
            found += within[c] / weight[c]
    return found


@kernel
def fill(masses: Floats, labels: Ints, counts: Ints, distance: Floats) -> None:
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


@kernel
def settle(squared: Floats, masses: Floats, labels: Ints, reach: Floats, weight: Floats, within: Floats) -> float:
    """Lloyd's iteration from labels (n,), changed in place, until no channel changes; returns the inertia.

    Every label 0 … k − 1 is in use afterwards. The last three arguments are space to work in.
    """
    n, k = len(labels), len(weight)
    counts = np.zeros(k, np.int64)
    nearest, own = np.empty(n), np.empty(n)
    target = np.empty(n, np.int64)
    for i in range(n):
        counts[labels[i]] += 1
    own[:] = 1.0
    fill(masses, labels, counts, own)
    for _ in range(ITERATIONS):
        sums(squared, masses, labels, reach, weight, within)
        for i in range(n):
            c = labels[i]
            own[i] = max(reach[c, i] / weight[c] - within[c] / weight[c] ** 2, 0.0)
            nearest[i] = own[i] * (1.0 - TIE)
            target[i] = c
        for c in range(k):
            scale, shift = 1.0 / weight[c], within[c] / weight[c] ** 2
            for i in range(n):
                d = reach[c, i] * scale - shift
                if d < nearest[i]:
                    nearest[i] = d
                    target[i] = c
        moved = 0
        for i in range(n):
            if target[i] != labels[i]:
                counts[labels[i]] -= 1
                counts[target[i]] += 1
                labels[i] = target[i]
                own[i] = max(nearest[i], 0.0)
                moved += 1
        if moved == 0:
            break
        fill(masses, labels, counts, own)
    else:
        sums(squared, masses, labels, reach, weight, within)
    return total(weight, within)


@kernel
def space(n: int, k: int) -> tuple[Floats, Floats, Floats]:
    """Arrays for `settle` to work in."""
    return np.empty((k, n)), np.empty(k), np.empty(k)


@kernel
def plus_plus(squared: Floats, masses: Floats, k: int, state: NDArray[np.uint64]) -> Ints:
    """(n,) the nearest of k channels drawn as in k-means++, by mass times squared distance to those already drawn."""
    n = len(masses)
    distance, labels = np.ones(n), np.zeros(n, np.int64)
    for c in range(k):
        everything = 0.0
        for i in range(n):
            everything += masses[i] * distance[i]
        left, drawn = uniform(state) * everything, -1
        for i in range(n):
            if distance[i] > 0.0:
                drawn = i
                left -= masses[i] * distance[i]
                if left < 0.0:
                    break
        if drawn < 0:  # every channel equals one that was drawn
            drawn = below(state, n)
        for i in range(n):
            if c == 0 or squared[drawn, i] < distance[i]:
                distance[i] = squared[drawn, i]
                labels[i] = c
    return labels


@kernel
def restarts(squared: Floats, masses: Floats, k: int, first: int, last: int, seed: np.uint64) -> tuple[float, Ints]:
    """The best of the starts first … last − 1: inertia and labels (n,)."""
    n = len(masses)
    reach, weight, within = space(n, k)
    best, lowest = np.zeros(n, np.int64), np.inf
    for restart in range(first, last):
        labels = plus_plus(squared, masses, k, seeded(seed, restart))
        inertia = settle(squared, masses, labels, reach, weight, within)
        if inertia < lowest:
            lowest, best = inertia, labels
    return lowest, best
