"""Compiled: a clustering that is changed channel by channel, and what every change would cost.

Only O(n + k) numbers are kept, always exact: what else is needed about a cluster is summed from the rows of its
channels, which are few where a good part of the channels is to be left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Floats, Ints
from ._jit import kernel

# Records rather than an array for each field: kernels that take a dozen arrays are slow to call and slower to compile.
CHANNEL = np.dtype(
    [
        ("label", np.int64),  # its cluster
        ("next", np.int64),  # the next channel of the same cluster, −1 after the last
        ("reach", np.float64),  # Σ m_j D_ij over its cluster
        ("gain", np.float64),  # by how much the inertia falls when it leaves its cluster; 0 where it is alone
        ("entry", np.float64),  # by how much it at least grows when it enters another that has not changed since
    ]
)
CLUSTER = np.dtype(
    [
        ("first", np.int64),  # its first channel, −1 where it is empty
        ("count", np.int64),  # of its channels
        ("inverse", np.float64),  # of their mass W
        ("spread", np.float64),  # Σ m_i m_j D_ij / W² over pairs of its channels: its inertia over its mass
        ("join", np.float64),  # by how much the inertia grows when it is merged with its best partner, or less if stale
        ("partner", np.int64),  # that partner, −1 where there is none
        ("stale", np.int64),  # 1 where it or its partner has changed since
        ("dirty", np.int64),  # 1 where it has changed since its moves were last searched
    ]
)


class State(NamedTuple):
    """n channels in k clusters; a cluster may be empty for as long as a step takes.

    squared: (n × n) squared distances.
    masses: (n,) positive.
    channels: (n,) of CHANNEL.
    clusters: (k,) of CLUSTER.
    """

    squared: Floats
    masses: Floats
    channels: NDArray[Any]
    clusters: NDArray[Any]


@kernel
def state_of(squared: Floats, masses: Floats, labels: Ints, k: int) -> State:
    """The state of labels (n,), all of 0 … k − 1 in use; every cluster dirty."""
    s = State(squared, masses, np.empty(len(labels), CHANNEL), np.empty(k, CLUSTER))
    for c in range(k):
        s.clusters[c].first, s.clusters[c].count, s.clusters[c].partner = -1, 0, -1
    for i in range(len(labels)):
        attach(s, i, labels[i])
        s.channels[i].entry = 0.0
    for c in range(k):
        renew(s, c)
    return s


@kernel
def copy(source: State, target: State) -> None:
    """Make one state of a problem equal to another."""
    for i in range(len(source.channels)):
        target.channels[i] = source.channels[i]
    for c in range(len(source.clusters)):
        target.clusters[c] = source.clusters[c]


@kernel
def labels_of(s: State) -> Ints:
    """(n,)"""
    labels = np.empty(len(s.channels), np.int64)
    for i in range(len(labels)):
        labels[i] = s.channels[i].label
    return labels


@kernel
def inertia_of(s: State) -> float:
    """Σ spread · mass."""
    found = 0.0
    for c in range(len(s.clusters)):
        if s.clusters[c].count > 1:
            found += s.clusters[c].spread / s.clusters[c].inverse
    return found


@kernel
def attach(s: State, i: int, c: int) -> None:
    """Put channel i, which is nowhere, into cluster c; to be followed by `renew`."""
    s.channels[i].label = c
    s.channels[i].next = s.clusters[c].first
    s.clusters[c].first = i
    s.clusters[c].count += 1


@kernel
def detach(s: State, i: int) -> None:
    """Take channel i out of its cluster; to be followed by `renew`."""
    cluster = s.clusters[s.channels[i].label]
    cluster.count -= 1
    if cluster.first == i:
        cluster.first = s.channels[i].next
        return
    before = cluster.first
    while s.channels[before].next != i:
        before = s.channels[before].next
    s.channels[before].next = s.channels[i].next


@kernel
def renew(s: State, c: int) -> None:
    """Tell that the channels of cluster c have changed: what they gain by leaving is measured, the rest when needed."""
    measure(s, c)
    for b in range(len(s.clusters)):
        if s.clusters[b].partner == c:
            s.clusters[b].stale = 1
    cluster = s.clusters[c]
    cluster.join, cluster.partner, cluster.stale, cluster.dirty = 0.0, -1, 1, 1


@kernel
def measure(s: State, c: int) -> None:
    """The mass and the inertia of cluster c, and what its channels gain by leaving."""
    cluster, weight, within = s.clusters[c], 0.0, 0.0
    i = cluster.first
    while i >= 0:
        distances, reach = s.squared[i], 0.0
        j = cluster.first
        while j >= 0:
            reach += s.masses[j] * distances[j]
            j = s.channels[j].next
        weight += s.masses[i]
        within += 0.5 * s.masses[i] * reach
        s.channels[i].reach = reach
        i = s.channels[i].next
    cluster.inverse = 1.0 / weight
    cluster.spread = within * cluster.inverse**2
    i = cluster.first
    while i >= 0:
        channel, m = s.channels[i], s.masses[i]
        channel.gain = 0.0
        if cluster.count > 1:
            channel.gain = max(channel.reach * cluster.inverse - cluster.spread, 0.0) * (m * weight / (weight - m))
        i = channel.next


@kernel
def row_of(s: State, c: int) -> Floats:
    """(n,) Σ_{j in c} m_j D_ij."""
    row = np.zeros(len(s.channels))
    j = s.clusters[c].first
    while j >= 0:
        m, distances = s.masses[j], s.squared[j]
        for i in range(len(row)):
            row[i] += m * distances[i]
        j = s.channels[j].next
    return row


@kernel
def best_partner(s: State, c: int) -> int:
    """The cluster that is cheapest to merge with c, searched where that is stale; −1 where there is none.

    A search also tells the others what merging with c would cost them.
    """
    cluster = s.clusters[c]
    if not cluster.stale:
        return cluster.partner
    cluster.join, cluster.partner, cluster.stale = np.inf, -1, 0
    if cluster.count == 0:
        return -1
    row, between = row_of(s, c), np.zeros(len(s.clusters))
    for i in range(len(row)):
        between[s.channels[i].label] += s.masses[i] * row[i]
    for b in range(len(between)):
        other = s.clusters[b]
        if b != c and other.count > 0:
            distance = between[b] * (cluster.inverse * other.inverse) - cluster.spread - other.spread
            cost = max(distance, 0.0) / (cluster.inverse + other.inverse)
            if cost < cluster.join:
                cluster.join, cluster.partner = cost, b
            if cost <= other.join:
                other.join, other.partner, other.stale = cost, c, 0
    return cluster.partner


@kernel
def cheapest_join(s: State, without: int) -> tuple[float, int, int]:
    """The least cost of merging a cluster with its best partner, and the two; −1 where there are none.

    The cluster `without` and those that would rather be merged with it are passed over.
    """
    while True:
        best, at = np.inf, -1
        for c in range(len(s.clusters)):
            cluster = s.clusters[c]
            if cluster.join < best and c != without and (cluster.stale or cluster.partner != without):
                best, at = cluster.join, c
        if at < 0 or not s.clusters[at].stale:
            return best, at, s.clusters[at].partner if at >= 0 else -1
        best_partner(s, at)
