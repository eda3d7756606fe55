"""Compiled: a clustering that is changed channel by channel, and what every change would cost.

Only O(n + k) numbers are kept, always exact: what else is needed about a cluster is summed from the rows of its
channels, which are few where a good part of the channels is to be left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.coupling import Bools, Floats, Ints
from ._jit import kernel


class State(NamedTuple):
    """n channels in k clusters; a cluster may be empty for as long as a step takes.

    squared: (n × n) squared distances.
    masses: (n,) positive.
    labels: (n,) the cluster of each channel.
    following: (n,) the next channel of the same cluster, −1 after the last.
    first: (k,) the first channel of each cluster, −1 where it is empty.
    counts: (k,) channels of each cluster.
    weight: (k,) their mass.
    within: (k,) Σ m_i m_j D_ij over pairs of the cluster; its inertia is within / weight.
    reach: (n,) Σ m_j D_ij over the channel's own cluster.
    gain: (n,) by how much the inertia falls when the channel leaves its cluster; 0 for one that is alone.
    join: (k,) by how much it grows when the cluster is merged with its best partner; a lower bound where stale.
    partner: (k,) that partner, −1 where there is none.
    stale: (k,) the partner has changed since.
    dirty: (k,) the cluster has changed since its moves were last searched.
    """

    squared: Floats
    masses: Floats
    labels: Ints
    following: Ints
    first: Ints
    counts: Ints
    weight: Floats
    within: Floats
    reach: Floats
    gain: Floats
    join: Floats
    partner: Ints
    stale: Bools
    dirty: Bools


@kernel
def state_of(squared: Floats, masses: Floats, labels: Ints, k: int) -> State:
    """The state of labels (n,), all of 0 … k − 1 in use; every cluster dirty."""
    n = len(labels)
    s = State(
        squared,
        masses,
        labels.copy(),
        np.full(n, -1),
        np.full(k, -1),
        np.zeros(k, np.int64),
        np.zeros(k),
        np.zeros(k),
        np.zeros(n),
        np.zeros(n),
        np.full(k, np.inf),
        np.full(k, -1),
        np.zeros(k, np.bool_),
        np.ones(k, np.bool_),
    )
    for i in range(n):
        attach(s, i, labels[i])
    for c in range(k):
        measure(s, c)
    for c in range(k):
        look_around(s, c)
    return s


@kernel
def copy(source: State, target: State) -> None:
    """Make one state of a problem equal to another."""
    target.labels[:] = source.labels
    target.following[:] = source.following
    target.first[:] = source.first
    target.counts[:] = source.counts
    target.weight[:] = source.weight
    target.within[:] = source.within
    target.reach[:] = source.reach
    target.gain[:] = source.gain
    target.join[:] = source.join
    target.partner[:] = source.partner
    target.stale[:] = source.stale
    target.dirty[:] = source.dirty


@kernel
def inertia_of(s: State) -> float:
    """Σ within / weight."""
    found = 0.0
    for c in range(len(s.first)):
        if s.counts[c] > 1:
            found += s.within[c] / s.weight[c]
    return found


@kernel
def attach(s: State, i: int, c: int) -> None:
    """Put channel i, which is nowhere, into cluster c; to be followed by `renew`."""
    s.labels[i] = c
    s.counts[c] += 1
    s.following[i] = s.first[c]
    s.first[c] = i


@kernel
def detach(s: State, i: int) -> None:
    """Take channel i out of its cluster; to be followed by `renew`."""
    c = s.labels[i]
    s.counts[c] -= 1
    if s.first[c] == i:
        s.first[c] = s.following[i]
        return
    before = s.first[c]
    while s.following[before] != i:
        before = s.following[before]
    s.following[before] = s.following[i]


@kernel
def renew(s: State, c: int) -> None:
    """Everything about cluster c, whose channels have changed."""
    s.dirty[c] = s.counts[c] > 0
    measure(s, c)
    look_around(s, c)


@kernel
def row_of(s: State, c: int) -> Floats:
    """(n,) Σ_{j in c} m_j D_ij."""
    n = len(s.labels)
    row = np.zeros(n)
    j = s.first[c]
    while j >= 0:
        m, distances = s.masses[j], s.squared[j]
        for i in range(n):
            row[i] += m * distances[i]
        j = s.following[j]
    return row


@kernel
def measure(s: State, c: int) -> None:
    """The weight and the inertia of cluster c, and what its channels gain by leaving."""
    weight, within = 0.0, 0.0
    i = s.first[c]
    while i >= 0:
        weight += s.masses[i]
        distances, reach = s.squared[i], 0.0
        j = s.first[c]
        while j >= 0:
            reach += s.masses[j] * distances[j]
            j = s.following[j]
        s.reach[i] = reach
        within += 0.5 * s.masses[i] * reach
        i = s.following[i]
    s.weight[c], s.within[c] = weight, within
    i = s.first[c]
    while i >= 0:
        m = s.masses[i]
        s.gain[i] = 0.0
        if s.counts[c] > 1:
            s.gain[i] = max(s.reach[i] / weight - within / weight**2, 0.0) * (m * weight / (weight - m))
        i = s.following[i]


@kernel
def joins(s: State, c: int) -> Floats:
    """(k,) by how much the inertia grows when cluster c is merged with each other; infinite where that cannot be."""
    n, k, row = len(s.labels), len(s.first), row_of(s, c)
    cost = np.zeros(k)
    for i in range(n):
        cost[s.labels[i]] += s.masses[i] * row[i]
    weight, spread = s.weight[c], s.within[c] / s.weight[c] ** 2
    for b in range(k):
        if b == c or s.counts[b] == 0:
            cost[b] = np.inf
        else:
            other = s.weight[b]
            distance = cost[b] / (weight * other) - spread - s.within[b] / other**2
            cost[b] = max(distance, 0.0) * (weight * other / (weight + other))
    return cost


@kernel
def look_around(s: State, c: int) -> None:
    """The best partner of cluster c, which has changed, and what the change means to the other clusters."""
    k = len(s.first)
    best, at = np.inf, -1
    if s.counts[c] > 0:
        cost = joins(s, c)
        for b in range(k):
            if cost[b] < best:
                best, at = cost[b], b
            if cost[b] <= s.join[b] and b != c and s.counts[b] > 0:
                s.join[b], s.partner[b], s.stale[b] = cost[b], c, False
            elif s.partner[b] == c:
                s.stale[b] = True
    else:
        for b in range(k):
            if s.partner[b] == c:
                s.stale[b] = True
    s.join[c], s.partner[c], s.stale[c] = best, at, False


@kernel
def cheapest_join(s: State, without: int) -> tuple[float, int, int]:
    """The two clusters, none of them `without`, whose merging costs least, and the cost; −1 where there are no two."""
    while True:
        best, at = np.inf, -1
        for c in range(len(s.first)):
            if s.join[c] < best and c != without and (s.stale[c] or s.partner[c] != without):
                best, at = s.join[c], c
        if at < 0:
            return np.inf, -1, -1
        if not s.stale[at]:
            return best, at, s.partner[at]
        cost = joins(s, at)
        b = int(np.argmin(cost))
        s.join[at], s.partner[at], s.stale[at] = cost[b], b, False
