"""Compiled: local search among clusterings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.coupling import Floats, Ints
from ._jit import below, kernel, uniform
from ._state import State, attach, cheapest_join, copy, detach, inertia_of, joins, renew, row_of, state_of

TIE = 1e-12  # an advantage below this share of the terms it is the difference of is rounding
STEPS = (
    100  # most steps of one descent, times the number of channels: it ends far earlier unless rounding makes it turn
)
KICKS = 4  # most of one round


@kernel
def move(s: State, i: int, c: int) -> None:
    """Channel i goes to cluster c."""
    a = s.labels[i]
    detach(s, i)
    attach(s, i, c)
    renew(s, a)
    renew(s, c)


@kernel
def regroup(s: State, a: int, b: int, i: int) -> None:
    """Clusters a and b become one, and channel i of another cluster gets the free label."""
    if s.counts[a] > s.counts[b]:
        a, b = b, a
    while s.first[a] >= 0:
        j = s.first[a]
        detach(s, j)
        attach(s, j, b)
    renew(s, a)
    renew(s, b)
    move(s, i, a)


@kernel
def seen_from(s: State, i: int) -> Floats:
    """(k,) Σ_{j in c} m_j D_ij for every cluster c."""
    seen, distances = np.zeros(len(s.first)), s.squared[i]
    for j in range(len(s.labels)):
        seen[s.labels[j]] += s.masses[j] * distances[j]
    return seen


@kernel
def best_move(s: State, c: int) -> tuple[int, int]:
    """The channel whose move into or out of cluster c gains most, and its target; −1 where none gains."""
    best, who, to = 0.0, -1, -1
    row, weight = row_of(s, c), s.weight[c]
    scale, shift = 1.0 / weight, s.within[c] / weight**2
    for i in range(len(s.labels)):
        m = s.masses[i]
        far = row[i] * scale
        better = s.gain[i] - (far - shift) * (m * weight / (weight + m))
        if better > best and s.labels[i] != c and better > TIE * m * far and s.gain[i] > 0.0:
            best, who, to = better, i, c
    i = s.first[c] if s.counts[c] > 1 else -1
    while i >= 0:
        seen, m = seen_from(s, i), s.masses[i]
        for b in range(len(s.first)):
            if b != c and s.counts[b] > 0:
                weight = s.weight[b]
                far = seen[b] / weight
                better = s.gain[i] - (far - s.within[b] / weight**2) * (m * weight / (weight + m))
                if better > best and better > TIE * m * far:
                    best, who, to = better, i, b
        i = s.following[i]
    return who, to


@kernel
def best_swap(s: State, c: int) -> tuple[int, int]:
    """The channel of cluster c and that of another whose exchange gains most; −1 where none gains."""
    best, who, whom = 0.0, -1, -1
    row, weight, within = row_of(s, c), s.weight[c], s.within[c]
    i = s.first[c]
    while i >= 0:
        seen, m, distances = seen_from(s, i), s.masses[i], s.squared[i]
        for j in range(len(s.labels)):
            b, other = s.labels[j], s.masses[j]
            if b == c or (s.counts[b] == 1 and s.counts[c] == 1):
                continue
            cross = m * other * distances[j]
            mine = (within - m * s.reach[i] + other * row[j] - cross) / (weight - m + other)
            theirs = (s.within[b] - other * s.reach[j] + m * seen[b] - cross) / (s.weight[b] - other + m)
            before = within / weight + s.within[b] / s.weight[b]
            better = before - max(mine, 0.0) - max(theirs, 0.0)
            if better > best and better > 1e-9 * before:
                best, who, whom = better, i, j
        i = s.following[i]
    return who, whom


@kernel
def swap(s: State, i: int, j: int) -> None:
    """Channels i and j change places."""
    a, b = s.labels[i], s.labels[j]
    detach(s, i)
    detach(s, j)
    attach(s, i, b)
    attach(s, j, a)
    renew(s, a)
    renew(s, b)


@kernel
def best_leaver(s: State, a: int, b: int) -> int:
    """The channel outside clusters a and b that gains most by leaving its cluster; −1 where none gains."""
    best, who = 0.0, -1
    for i in range(len(s.labels)):
        if s.gain[i] > best and s.labels[i] != a and s.labels[i] != b:
            best, who = s.gain[i], i
    return who


@kernel
def best_regroup(s: State) -> tuple[int, int, int]:
    """Two clusters to merge and a channel to be alone instead, where that gains; −1 where not.

    Tried are the cheapest merge with the best channel outside it, and the best channel with the cheapest merge outside.
    """
    cost, a, b = cheapest_join(s, -1)
    i = best_leaver(s, a, b)
    gain = s.gain[i] if i >= 0 else 0.0
    other = best_leaver(s, -1, -1)
    if other >= 0 and other != i:
        cost2, a2, b2 = cheapest_join(s, s.labels[other])
        if s.gain[other] - cost2 > gain - cost:
            gain, cost, a, b, i = s.gain[other], cost2, a2, b2, other
    if i >= 0 and gain - cost > 1e-9 * gain:
        return a, b, i
    return -1, -1, -1


@kernel
def descend(s: State, swaps: bool) -> None:
    """Single moves, then regroupings and swaps, until none gains."""
    k, limit = len(s.first), STEPS * len(s.labels)
    quiet = np.zeros(k, np.bool_)  # no swap of this cluster gains
    steps = 0
    while steps < limit:
        steps += 1
        moved = False
        for c in range(k):
            while s.dirty[c] and steps < limit:
                s.dirty[c] = False
                quiet[c] = False
                i, to = best_move(s, c)
                if i >= 0:
                    move(s, i, to)
                    moved = True
                    steps += 1
        if moved:
            continue
        a, b, i = best_regroup(s)
        if a >= 0:
            regroup(s, a, b, i)
            continue
        if swaps:
            j = -1
            for c in range(k):
                if not quiet[c]:
                    i, j = best_swap(s, c)
                    if j >= 0:
                        swap(s, i, j)
                        break
                    quiet[c] = True
            if j >= 0:
                continue
        return


@kernel
def kick(s: State, state: NDArray[np.uint64]) -> None:
    """Regroup at random: a random channel leaves and the cheapest clusters are merged, or a random cluster is merged
    with one of its best partners and the channel that gains most leaves."""
    n, k = len(s.labels), len(s.first)
    if uniform(state) < 0.5:
        i = below(state, n)
        while s.counts[s.labels[i]] == 1:
            i = (i + 1) % n
        _, a, b = cheapest_join(s, s.labels[i])
    else:
        a = below(state, k)
        cost = joins(s, a)
        b = int(np.argmin(cost))
        if uniform(state) < 0.5 and k > 2:
            cost[b] = np.inf
            b = int(np.argmin(cost))
        i = best_leaver(s, a, b)
    if a >= 0 and i >= 0:
        regroup(s, a, b, i)


@kernel
def rounds(
    squared: Floats, masses: Floats, labels: Ints, k: int, count: int, state: NDArray[np.uint64]
) -> tuple[float, Ints]:
    """A descent from labels (n,), then rounds of kicks and a descent, kept unless they lose: inertia and labels (n,).

    Swaps hardly ever gain where nothing else does and are slow to search, so they are tried at the end only.
    """
    s = state_of(squared, masses, labels, k)
    descend(s, False)
    kept = state_of(squared, masses, s.labels, k)
    copy(s, kept)
    lowest = inertia_of(s)
    for _ in range(count):
        for _ in range(1 + below(state, KICKS)):
            kick(s, state)
        descend(s, False)
        inertia = inertia_of(s)
        if inertia <= lowest:
            lowest = inertia
            copy(s, kept)
        else:
            copy(kept, s)
    descend(s, True)
    return inertia_of(s), s.labels
