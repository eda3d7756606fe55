"""Compiled: a clustering that is changed channel by channel, and what every change would cost.

Only O(n + k) numbers are kept, always exact: what else is needed about a cluster is summed from the rows of its
channels, which are few where a good part of the channels is to be left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import Floats, Ints
from .._jit import fast

# Records rather than an array for each field: functions of a dozen arrays are slow to call and slower to compile.
CHANNEL = np.dtype(
    [
        ("label", np.int64),  # its cluster
        ("next", np.int64),  # the next channel of the same cluster, −1 after the last
        ("distance_sum", np.float64),  # Σ m_j D_ij over its cluster
        ("gain", np.float64),  # by how much the inertia falls when it leaves its cluster; 0 where it is alone
        ("entry", np.float64),  # by how much it at least grows when it enters another that has not changed since
    ]
)
CLUSTER = np.dtype(
    [
        ("first", np.int64),  # its first channel, −1 where it is empty
        ("count", np.int64),  # number of its channels
        ("inverse_mass", np.float64),  # 1 / W, where W is the mass of its channels
        ("spread", np.float64),  # Σ m_i m_j D_ij / W² over pairs of its channels: its inertia over its mass
        ("merge_cost", np.float64),  # growth of the inertia by merging it with its best partner, or less if stale
        ("partner", np.int64),  # that partner, −1 where there is none
        ("stale", np.int64),  # 1 where it or its partner has changed since
        ("dirty", np.int64),  # 1 where it has changed since its moves were last searched
    ]
)


class State(NamedTuple):
    """n channels in k clusters; a cluster may be empty for as long as a step takes.

    Attributes:
        squared: (n × n) squared distances.
        masses: (n,) positive masses.
        channels: (n,) records of CHANNEL.
        clusters: (k,) records of CLUSTER.
    """

    squared: Floats
    masses: Floats
    channels: NDArray[Any]
    clusters: NDArray[Any]


@fast
def state_of(squared: Floats, masses: Floats, labels: Ints, k: int) -> State:
    """The state of labels (n,), all of 0 … k − 1 in use; every cluster dirty."""
    state = State(squared, masses, np.empty(len(labels), CHANNEL), np.empty(k, CLUSTER))
    for c in range(k):
        state.clusters[c].first, state.clusters[c].count, state.clusters[c].partner = -1, 0, -1
    for i in range(len(labels)):
        attach(state, i, labels[i])
        state.channels[i].entry = 0.0
    for c in range(k):
        renew(state, c)
    return state


@fast
def copy(source: State, target: State) -> None:
    """Make one state of a problem equal to another."""
    for i in range(len(source.channels)):
        target.channels[i] = source.channels[i]
    for c in range(len(source.clusters)):
        target.clusters[c] = source.clusters[c]


@fast
def labels_of(state: State) -> Ints:
    """(n,) the cluster of every channel."""
    labels = np.empty(len(state.channels), np.int64)
    for i in range(len(labels)):
        labels[i] = state.channels[i].label
    return labels


@fast
def inertia_of(state: State) -> float:
    """Σ spread · mass."""
    found = 0.0
    for c in range(len(state.clusters)):
        if state.clusters[c].count > 1:
            found += state.clusters[c].spread / state.clusters[c].inverse_mass
    return found


@fast
def attach(state: State, i: int, c: int) -> None:
    """Put channel i, which is nowhere, into cluster c; to be followed by `renew`."""
    state.channels[i].label = c
    state.channels[i].next = state.clusters[c].first
    state.clusters[c].first = i
    state.clusters[c].count += 1


@fast
def detach(state: State, i: int) -> None:
    """Take channel i out of its cluster; to be followed by `renew`."""
    cluster = state.clusters[state.channels[i].label]
    cluster.count -= 1
    if cluster.first == i:
        cluster.first = state.channels[i].next
        return
    before = cluster.first
    while state.channels[before].next != i:
        before = state.channels[before].next
    state.channels[before].next = state.channels[i].next


@fast
def renew(state: State, c: int) -> None:
    """Note that the channels of cluster c have changed: what they gain by leaving is measured, the rest when needed."""
    measure(state, c)
    for b in range(len(state.clusters)):
        if state.clusters[b].partner == c:
            state.clusters[b].stale = 1
    cluster = state.clusters[c]
    cluster.merge_cost, cluster.partner, cluster.stale, cluster.dirty = 0.0, -1, 1, 1


@fast
def measure(state: State, c: int) -> None:
    """The mass and the inertia of cluster c, and what its channels gain by leaving."""
    cluster, mass, within = state.clusters[c], 0.0, 0.0
    i = cluster.first
    while i >= 0:
        distances, distance_sum = state.squared[i], 0.0
        j = cluster.first
        while j >= 0:
            distance_sum += state.masses[j] * distances[j]
            j = state.channels[j].next
        mass += state.masses[i]
        within += 0.5 * state.masses[i] * distance_sum
        state.channels[i].distance_sum = distance_sum
        i = state.channels[i].next
    cluster.inverse_mass = 1.0 / mass
    cluster.spread = within * cluster.inverse_mass**2
    i = cluster.first
    while i >= 0:
        channel, m = state.channels[i], state.masses[i]
        channel.gain = 0.0
        if cluster.count > 1:
            distance = channel.distance_sum * cluster.inverse_mass - cluster.spread
            channel.gain = max(distance, 0.0) * (m * mass / (mass - m))
        i = channel.next


@fast
def row_of(state: State, c: int) -> Floats:
    """(n,) Σ_{j in c} m_j D_ij."""
    row = np.zeros(len(state.channels))
    j = state.clusters[c].first
    while j >= 0:
        m, distances = state.masses[j], state.squared[j]
        for i in range(len(row)):
            row[i] += m * distances[i]
        j = state.channels[j].next
    return row


@fast
def best_partner(state: State, c: int) -> int:
    """The cluster that is cheapest to merge with c, searched where that is stale; −1 where there is none.

    A search also tells the others what merging with c would cost them.
    """
    cluster = state.clusters[c]
    if not cluster.stale:
        return cluster.partner
    cluster.merge_cost, cluster.partner, cluster.stale = np.inf, -1, 0
    if cluster.count == 0:
        return -1
    row, between = row_of(state, c), np.zeros(len(state.clusters))
    for i in range(len(row)):
        between[state.channels[i].label] += state.masses[i] * row[i]
    for b in range(len(between)):
        other = state.clusters[b]
        if b != c and other.count > 0:
            distance = between[b] * (cluster.inverse_mass * other.inverse_mass) - cluster.spread - other.spread
            cost = max(distance, 0.0) / (cluster.inverse_mass + other.inverse_mass)
            if cost < cluster.merge_cost:
                cluster.merge_cost, cluster.partner = cost, b
            if cost <= other.merge_cost:
                other.merge_cost, other.partner, other.stale = cost, c, 0
    return cluster.partner


@fast
def cheapest_merge(state: State, without: int) -> tuple[float, int, int]:
    """The least cost of merging a cluster with its best partner, and the two; −1 where there are none.

    The cluster `without` and those that would rather be merged with it are passed over.
    """
    while True:
        best, at = np.inf, -1
        for c in range(len(state.clusters)):
            cluster = state.clusters[c]
            if cluster.merge_cost < best and c != without and (cluster.stale or cluster.partner != without):
                best, at = cluster.merge_cost, c
        if at < 0 or not state.clusters[at].stale:
            return best, at, state.clusters[at].partner if at >= 0 else -1
        best_partner(state, at)
