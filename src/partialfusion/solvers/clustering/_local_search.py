"""Compiled: local search among clusterings, on the state of `_state.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import Bools, Floats, Ints
from .._jit import fast
from ._random import below
from ._state import State, attach, best_partner, cheapest_merge, copy, detach, inertia_of, renew, row_of, state_of

# An advantage below this fraction of the terms whose difference it is counts as rounding.
TIE, CLEAR = 1e-12, 1e-9
SWEEPS = 10  # at most, in one descent, per channel: it ends far earlier, and rounding must not keep it going
KICKS = 4  # at most, in one round
JOINS, LEAVES = 4, 3  # drawn for a kick, of which the best is taken


@fast
def move(state: State, i: int, c: int) -> None:
    """Channel i goes to cluster c."""
    a = state.channels[i].label
    detach(state, i)
    attach(state, i, c)
    renew(state, a)
    renew(state, c)


@fast
def swap(state: State, i: int, j: int) -> None:
    """Channels i and j change places."""
    a, b = state.channels[i].label, state.channels[j].label
    detach(state, i)
    detach(state, j)
    attach(state, i, b)
    attach(state, j, a)
    renew(state, a)
    renew(state, b)


@fast
def regroup(state: State, a: int, b: int, i: int) -> None:
    """Clusters a and b become one, and channel i, not alone by then, gets the free label."""
    if state.clusters[a].count > state.clusters[b].count:
        a, b = b, a
    while state.clusters[a].first >= 0:
        j = state.clusters[a].first
        detach(state, j)
        attach(state, j, b)
    renew(state, b)
    move(state, i, a)


@fast
def seen_from(state: State, i: int) -> Floats:
    """(k,) Σ_{j in c} m_j D_ij for every cluster c."""
    seen, distances = np.zeros(len(state.clusters)), state.squared[i]
    for j in range(len(state.channels)):
        seen[state.channels[j].label] += state.masses[j] * distances[j]
    return seen


@fast
def best_move(state: State, c: int) -> tuple[int, int]:
    """The channel whose move into or out of cluster c gains most, and its target; −1 where none gains.

    A channel that gains less by leaving than any entry cost when it was last searched need not be searched again: the
    clusters that have changed since are dirty, and look at all channels themselves.
    """
    best, who, to = 0.0, -1, -1
    cluster, row = state.clusters[c], row_of(state, c)
    for i in range(len(row)):
        gain, light = state.channels[i].gain, 1.0 / state.masses[i]
        far = row[i] * cluster.inverse_mass
        better = gain - (far - cluster.spread) / (light + cluster.inverse_mass)
        if better > best and gain > 0.0 and state.channels[i].label != c and better * light > TIE * far:
            best, who, to = better, i, c
    i = cluster.first
    while i >= 0:
        channel, light = state.channels[i], 1.0 / state.masses[i]
        if channel.gain > best and channel.gain > channel.entry:
            seen = seen_from(state, i)
            channel.entry = np.inf
            for b in range(len(seen)):
                other = state.clusters[b]
                far = seen[b] * other.inverse_mass
                entry = (far - other.spread) / (light + other.inverse_mass)
                if b != c and entry < channel.entry:
                    channel.entry = entry
                    if channel.gain - entry > best and (channel.gain - entry) * light > TIE * far:
                        best, who, to = channel.gain - entry, i, b
        i = channel.next
    return who, to


@fast
def best_swap(state: State, c: int) -> tuple[int, int]:
    """The channel of cluster c and that of another whose exchange gains most; −1 where none gains."""
    best, who, whom = 0.0, -1, -1
    cluster, row = state.clusters[c], row_of(state, c)
    mass = 1.0 / cluster.inverse_mass
    i = cluster.first
    while i >= 0:
        seen, m, distances = seen_from(state, i), state.masses[i], state.squared[i]
        without = cluster.spread * mass**2 - m * state.channels[i].distance_sum
        for j in range(len(row)):
            b, mj = state.channels[j].label, state.masses[j]
            other = state.clusters[b]
            if b == c or (cluster.count == 1 and other.count == 1):
                continue
            theirs, cross = 1.0 / other.inverse_mass, m * mj * distances[j]
            before = cluster.spread * mass + other.spread * theirs
            mine = (without + mj * row[j] - cross) / (mass - m + mj)
            rest = other.spread * theirs**2 - mj * state.channels[j].distance_sum + m * seen[b] - cross
            better = before - max(mine, 0.0) - max(rest / (theirs - mj + m), 0.0)
            if better > best and better > CLEAR * before:
                best, who, whom = better, i, j
        i = state.channels[i].next
    return who, whom


@fast
def best_leaver(state: State, a: int, b: int) -> int:
    """The channel outside clusters a and b that gains most by leaving its cluster; −1 where none gains."""
    best, who = 0.0, -1
    for i in range(len(state.channels)):
        channel = state.channels[i]
        if channel.gain > best and channel.label != a and channel.label != b:
            best, who = channel.gain, i
    return who


@fast
def best_regroup(state: State) -> tuple[int, int, int]:
    """Two clusters to merge and a channel to be alone instead, where that gains; −1 where not.

    Tried are the cheapest merge with the best channel outside it, and the best channel with the cheapest merge outside.
    """
    i = best_leaver(state, -1, -1)
    if i < 0:
        return -1, -1, -1
    gain = state.channels[i].gain
    cost, a, b = cheapest_merge(state, state.channels[i].label)
    cost2, a2, b2 = cheapest_merge(state, -1)
    j = best_leaver(state, a2, b2)
    if j >= 0 and state.channels[j].gain - cost2 > gain - cost:
        gain, cost, i, a, b = state.channels[j].gain, cost2, j, a2, b2
    if gain - cost > CLEAR * gain:
        return a, b, i
    return -1, -1, -1


@fast
def make_swap(state: State, quiet: Bools) -> bool:
    """Make the first swap that gains, where there is one; quiet (k,) are the clusters known to have none."""
    for c in range(len(quiet)):
        if not quiet[c]:
            i, j = best_swap(state, c)
            if i >= 0:
                swap(state, i, j)
                return True
            quiet[c] = True
    return False


@fast
def descend(state: State, swaps: bool) -> None:
    """Single moves, then regroupings, then swaps, until none gains."""
    quiet = np.zeros(len(state.clusters), np.bool_)
    for _ in range(SWEEPS * len(state.channels)):
        moved = False
        for c in range(len(state.clusters)):
            if state.clusters[c].dirty:
                state.clusters[c].dirty = 0
                quiet[c] = False
                i, to = best_move(state, c)
                if i >= 0:
                    move(state, i, to)
                    moved = True
        if not moved:
            a, b, i = best_regroup(state)
            if a >= 0:
                regroup(state, a, b, i)
            elif not (swaps and make_swap(state, quiet)):
                return


@fast
def kick(state: State, random: NDArray[np.uint64]) -> None:
    """Regroup at random: the cheapest to merge and the most eager to leave of a few that are drawn."""
    a, b, i = -1, -1, -1
    for _ in range(JOINS):
        c = below(random, len(state.clusters))
        partner = best_partner(state, c)
        if partner >= 0 and (a < 0 or state.clusters[c].merge_cost < state.clusters[a].merge_cost):
            a, b = c, partner
    for _ in range(LEAVES):
        j = below(random, len(state.channels))
        c = state.channels[j].label
        free = state.clusters[c].count > 1 or c in (a, b)
        if free and (i < 0 or state.channels[j].gain > state.channels[i].gain):
            i = j
    if a >= 0 and i >= 0:
        regroup(state, a, b, i)


@fast
def settled(squared: Floats, masses: Floats, labels: Ints, k: int) -> State:
    """The state that a descent from labels (n,) ends in."""
    state = state_of(squared, masses, labels, k)
    descend(state, True)
    return state


@fast
def rounds(state: State, kept: State, count: int, random: NDArray[np.uint64]) -> None:
    """Rounds of a few kicks and a descent, taken back where they lose; kept is a state of the problem to work in.

    Swaps hardly ever gain where nothing else does and are slow to search, so they are left to the end.
    """
    copy(state, kept)
    lowest = inertia_of(state)
    for _ in range(count):
        for _ in range(1 + below(random, KICKS)):
            kick(state, random)
        descend(state, False)
        inertia = inertia_of(state)
        if inertia <= lowest:
            lowest = inertia
            copy(state, kept)
        else:
            copy(kept, state)
