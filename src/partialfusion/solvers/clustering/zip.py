"""Pairs of the most correlated channels, as ZipIt makes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from ...core.arrays import Bools, Floats, Ints
from ...errors import OptionError
from .problem import Clustering, Problem, checked_square, in_order

# A channel whose variance is below this fraction of the largest is constant: what is left is rounding.
CONSTANT = 1e-15


def zip_pairs(
    covariance: ArrayLike,
    k: int,
    masses: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    across: bool = False,
) -> Clustering:
    """Zip channels together, the most correlated first, until k clusters are left.

    A round takes pairs in the order of their correlation, each channel at most once, and leaves the others alone. Where
    that does not get down to k, another round pairs the clusters by the correlation of their mass-weighted means.
    Constant channels correlate with each other alone: a channel that never varies goes first with another such one.
    Channels without mass take no place from others: clusters that the others leave over are zipped of them alone, else
    each goes to the cluster that it correlates with most.

    Args:
        covariance: (n × n) covariance of the channels, in any unit.
        k: number of clusters.
        masses: (n,) masses of the channels; None for equal ones.
        groups: (n,) the model of each channel.
        across: pair only clusters that have no model in common, for as long as there are such.

    Returns:
        the clustering; its inertia is that of the centred channels.
    """
    covariance = checked_square(covariance, "covariance")
    variance = np.diag(covariance)
    problem = Problem.of(variance[:, None] + variance[None, :] - 2.0 * covariance, k, masses)
    models = _models(groups, len(problem)) if across else None
    heavy, light = np.flatnonzero(problem.masses > 0.0), np.flatnonzero(problem.masses == 0.0)
    labels = np.empty(len(problem), np.int64)
    labels[heavy] = _zipped(problem, covariance, models, heavy, min(k, len(heavy)))
    if k > len(heavy):
        labels[light] = len(heavy) + _zipped(problem, covariance, models, light, k - len(heavy))
    elif len(light):
        belongs = _belongs(problem, heavy, labels[heavy])
        sums = covariance[np.ix_(light, heavy)] @ belongs.T
        variance = (belongs @ covariance[np.ix_(heavy, heavy)] @ belongs.T).diagonal()
        varies = variance > CONSTANT * variance.max()
        labels[light] = np.where(varies, sums / np.sqrt(np.where(varies, variance, 1.0)), 0.0).argmax(1)
    return problem.clustering(labels)


def _zipped(problem: Problem, covariance: Floats, models: Floats | None, channels: Ints, k: int) -> Ints:
    """(c,) labels of some channels, zipped to k clusters."""
    covariance = covariance[np.ix_(channels, channels)]
    labels = np.arange(len(channels))
    while (count := int(labels.max()) + 1) > k:
        belongs = _belongs(problem, channels, labels)
        totals = belongs @ covariance @ belongs.T  # of the clusters' sums, which correlate as their means do
        allowed = np.ones((count, count), bool) if models is None else _apart(belongs, models[channels])
        labels = in_order(_paired(_correlation(totals), allowed, count - k)[labels])
    return labels


def _belongs(problem: Problem, channels: Ints, labels: Ints) -> csr_array:
    """(clusters × c) the mass of each channel in its cluster."""
    shape = int(labels.max()) + 1, len(labels)
    return csr_array((problem.scaled_masses[channels], (labels, np.arange(len(labels)))), shape=shape)


def _models(groups: ArrayLike | None, n: int) -> Floats:
    """(n × models) one where the channel is the model's."""
    if groups is None:
        raise OptionError("across=True needs groups: the model of each channel")
    given = np.asarray(groups)
    if given.shape != (n,):
        raise OptionError(f"groups have shape {given.shape}, but there are {n} channels: give the model of each")
    _, model = np.unique(given, return_inverse=True)
    return np.eye(int(model.max()) + 1)[model]


def _apart(belongs: csr_array, models: Floats) -> Bools:
    """(c × c) whether two clusters have no model in common; all true where that holds for no two."""
    has = belongs @ models > 0.0
    apart = ~(has @ has.T)
    return apart if apart.any() else np.ones_like(apart)


def _correlation(covariance: Floats) -> Floats:
    variance = np.diag(covariance)
    constant = variance <= CONSTANT * variance.max()
    scale = np.where(constant, 0.0, 1.0 / np.sqrt(np.where(constant, 1.0, variance)))
    return covariance * scale[:, None] * scale[None, :] + np.outer(constant, constant)


def _paired(correlation: Floats, allowed: Bools, most: int) -> Ints:
    """(c,) the cluster each becomes: at most `most` pairs, the most correlated first."""
    from ._zip import pair_up

    first, second = np.nonzero(np.triu(allowed, 1))
    order = np.argsort(-correlation[first, second], kind="stable")
    return pair_up(first[order], second[order], len(correlation), most)
