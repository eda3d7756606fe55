"""Compiled: local search among clusterings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Bools, Floats, Ints
from ._jit import below, kernel
from ._state import State, attach, best_partner, cheapest_join, copy, detach, inertia_of, renew, row_of, state_of

# An advantage below such a share of the terms it is the difference of is rounding.
TIE, CLEAR = 1e-12, 1e-9
SWEEPS = 10  # most of one descent, per channel: it ends far earlier, and rounding shall not keep it going
KICKS = 4  # most of one round
JOINS, LEAVES = 4, 3  # drawn for a kick, of which the best is taken


@kernel
def move(s: State, i: int, c: int) -> None:
    """Channel i goes to cluster c."""
    a = s.channels[i].label
    detach(s, i)
    attach(s, i, c)
    renew(s, a)
    renew(s, c)


@kernel
def swap(s: State, i: int, j: int) -> None:
    """Channels i and j change places."""
    a, b = s.channels[i].label, s.channels[j].label
    detach(s, i)
    detach(s, j)
    attach(s, i, b)
    attach(s, j, a)
    renew(s, a)
    renew(s, b)


@kernel
def regroup(s: State, a: int, b: int, i: int) -> None:
    """Clusters a and b become one, and channel i, not alone by then, gets the free label."""
    if s.clusters[a].count > s.clusters[b].count:
        a, b = b, a
    while s.clusters[a].first >= 0:
        j = s.clusters[a].first
        detach(s, j)
        attach(s, j, b)
    renew(s, b)
    move(s, i, a)


@kernel
def seen_from(s: State, i: int) -> Floats:
    """(k,) Σ_{j in c} m_j D_ij for every cluster c."""
    seen, distances = np.zeros(len(s.clusters)), s.squared[i]
    for j in range(len(s.channels)):
        seen[s.channels[j].label] += s.masses[j] * distances[j]
    return seen


@kernel
def best_move(s: State, c: int) -> tuple[int, int]:
    """The channel whose move into or out of cluster c gains most, and its target; −1 where none gains.

    A channel that gains less by leaving than any entry cost when it was last searched need not be searched again: the
    clusters that have changed since are dirty, and look at all channels themselves.
    """
    best, who, to = 0.0, -1, -1
    cluster, row = s.clusters[c], row_of(s, c)
    for i in range(len(row)):
        gain, light = s.channels[i].gain, 1.0 / s.masses[i]
        far = row[i] * cluster.inverse
        better = gain - (far - cluster.spread) / (light + cluster.inverse)
        if better > best and gain > 0.0 and s.channels[i].label != c and better * light > TIE * far:
            best, who, to = better, i, c
    i = cluster.first
    while i >= 0:
        channel, light = s.channels[i], 1.0 / s.masses[i]
        if channel.gain > best and channel.gain > channel.entry:
            seen = seen_from(s, i)
            channel.entry = np.inf
            for b in range(len(seen)):
                other = s.clusters[b]
                far = seen[b] * other.inverse
                entry = (far - other.spread) / (light + other.inverse)
                if b != c and entry < channel.entry:
                    channel.entry = entry
                    if channel.gain - entry > best and (channel.gain - entry) * light > TIE * far:
                        best, who, to = channel.gain - entry, i, b
        i = channel.next
    return who, to


@kernel
def best_swap(s: State, c: int) -> tuple[int, int]:
    """The channel of cluster c and that of another whose exchange gains most; −1 where none gains."""
    best, who, whom = 0.0, -1, -1
    cluster, row = s.clusters[c], row_of(s, c)
    weight = 1.0 / cluster.inverse
    i = cluster.first
    while i >= 0:
        seen, m, distances = seen_from(s, i), s.masses[i], s.squared[i]
        without = cluster.spread * weight**2 - m * s.channels[i].reach
        for j in range(len(row)):
            b, mj = s.channels[j].label, s.masses[j]
            other = s.clusters[b]
            if b == c or (cluster.count == 1 and other.count == 1):
                continue
            theirs, cross = 1.0 / other.inverse, m * mj * distances[j]
            before = cluster.spread * weight + other.spread * theirs
            mine = (without + mj * row[j] - cross) / (weight - m + mj)
            rest = other.spread * theirs**2 - mj * s.channels[j].reach + m * seen[b] - cross
            better = before - max(mine, 0.0) - max(rest / (theirs - mj + m), 0.0)
            if better > best and better > CLEAR * before:
                best, who, whom = better, i, j
        i = s.channels[i].next
    return who, whom


@kernel
def best_leaver(s: State, a: int, b: int) -> int:
    """The channel outside clusters a and b that gains most by leaving its cluster; −1 where none gains."""
    best, who = 0.0, -1
    for i in range(len(s.channels)):
        channel = s.channels[i]
        if channel.gain > best and channel.label != a and channel.label != b:
            best, who = channel.gain, i
    return who


@kernel
def best_regroup(s: State) -> tuple[int, int, int]:
    """Two clusters to merge and a channel to be alone instead, where that gains; −1 where not.

    Tried are the cheapest merge with the best channel outside it, and the best channel with the cheapest merge outside.
    """
    i = best_leaver(s, -1, -1)
    if i < 0:
        return -1, -1, -1
    gain = s.channels[i].gain
    cost, a, b = cheapest_join(s, s.channels[i].label)
    cost2, a2, b2 = cheapest_join(s, -1)
    j = best_leaver(s, a2, b2)
    if j >= 0 and s.channels[j].gain - cost2 > gain - cost:
        gain, cost, i, a, b = s.channels[j].gain, cost2, j, a2, b2
    if gain - cost > CLEAR * gain:
        return a, b, i
    return -1, -1, -1


@kernel
def swapped(s: State, quiet: Bools) -> bool:
    """Make the first swap that gains, where there is one; quiet (k,) are the clusters known to have none."""
    for c in range(len(quiet)):
        if not quiet[c]:
            i, j = best_swap(s, c)
            if i >= 0:
                swap(s, i, j)
                return True
            quiet[c] = True
    return False


@kernel
def descend(s: State, swaps: bool) -> None:
    """Single moves, then regroupings, then swaps, until none gains."""
    quiet = np.zeros(len(s.clusters), np.bool_)
    for _ in range(SWEEPS * len(s.channels)):
        moved = False
        for c in range(len(s.clusters)):
            if s.clusters[c].dirty:
                s.clusters[c].dirty = 0
                quiet[c] = False
                i, to = best_move(s, c)
                if i >= 0:
                    move(s, i, to)
                    moved = True
        if not moved:
            a, b, i = best_regroup(s)
            if a >= 0:
                regroup(s, a, b, i)
            elif not (swaps and swapped(s, quiet)):
                return


@kernel
def kick(s: State, state: NDArray[np.uint64]) -> None:
    """Regroup at random: the cheapest to merge and the most eager to leave of a few that are drawn."""
    a, b, i = -1, -1, -1
    for _ in range(JOINS):
        c = below(state, len(s.clusters))
        partner = best_partner(s, c)
        if partner >= 0 and (a < 0 or s.clusters[c].join < s.clusters[a].join):
            a, b = c, partner
    for _ in range(LEAVES):
        j = below(state, len(s.channels))
        c = s.channels[j].label
        free = s.clusters[c].count > 1 or c in (a, b)
        if free and (i < 0 or s.channels[j].gain > s.channels[i].gain):
            i = j
    if a >= 0 and i >= 0:
        regroup(s, a, b, i)


@kernel
def settled(squared: Floats, masses: Floats, labels: Ints, k: int) -> State:
    """The state that a descent from labels (n,) ends in."""
    s = state_of(squared, masses, labels, k)
    descend(s, True)
    return s


@kernel
def rounds(s: State, kept: State, count: int, state: NDArray[np.uint64]) -> None:
    """Rounds of a few kicks and a descent, taken back where they lose; kept is a state of the problem to work in.

    Swaps hardly ever gain where nothing else does and are slow to search, so they are left to the end.
    """
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
