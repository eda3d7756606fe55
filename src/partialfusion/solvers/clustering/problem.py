"""Clusterings of channels, the problem they solve and its inertia.

Solvers look at the (n × n) matrix of squared distances alone; `squared_distances` gives it from features. Centres are
never formed: the mass-weighted squared distances within a cluster say what its centre costs. Where Gram matrices are
streamed, no features are needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...core.arrays import Floats, Ints
from ...errors import OptionError

# Channels are at least this heavy, relative to the heaviest: one without mass then joins its nearest cluster.
LIGHTEST = 1e-12

# Squared distances below this fraction of the norms are summed again from differences: there the Gram matrix cancels.
CANCELLED = 1e-6


@dataclass(frozen=True, eq=False)
class Clustering:
    """A partition of n channels into k clusters.

    Attributes:
        labels: (n,) the cluster of each channel, 0 … k − 1 in order of first appearance, every one in use.
        inertia: Σ_i mass_i ‖x_i − centre of its cluster‖², centres weighted by mass.
        complete: False where the search was interrupted; this is then the best clustering it had found.
    """

    labels: Ints
    inertia: float
    complete: bool = True


@dataclass(frozen=True, eq=False)
class Problem:
    """n channels to be put into k clusters, checked.

    Attributes:
        squared: (n × n) squared distances: symmetric, none negative, zero on the diagonal.
        masses: (n,) masses as given.
        scaled_masses: (n,) the masses that solvers see: positive, the largest 1.
        k: number of clusters.
    """

    squared: Floats
    masses: Floats
    scaled_masses: Floats
    k: int

    @classmethod
    def of(cls, squared: ArrayLike, k: int, masses: ArrayLike | None) -> Problem:
        """Check and normalise the arguments of a solver; without masses all are one."""
        squared = checked_square(squared, "squared distances")
        n = len(squared)
        if not 1 <= k <= n or k != int(k):
            raise OptionError(f"cannot make {k} clusters of {n} channels: k must be 1 … {n}")
        squared = np.maximum((squared + squared.T) / 2, 0.0)
        np.fill_diagonal(squared, 0.0)
        given = checked_masses(masses, n)
        return cls(squared, given, np.maximum(given / given.max(), LIGHTEST), int(k))

    def __len__(self) -> int:
        return len(self.masses)

    @property
    def trivial(self) -> Ints | None:
        """(n,) the only labels there are for k = 1 and k = n, else None."""
        if self.k == len(self):
            return np.arange(len(self))
        return np.zeros(len(self), np.int64) if self.k == 1 else None

    def inertia(self, labels: Ints) -> float:
        """Σ over clusters of Σ_{i<j} m_i m_j D_ij / Σ m_i."""
        order = np.argsort(labels, kind="stable")
        ends = np.cumsum(np.bincount(labels))[:-1]
        found = 0.0
        for members in np.split(order, ends):
            m = self.masses[members]
            if len(members) > 1 and m.sum() > 0.0:
                found += float(m @ self.squared[np.ix_(members, members)] @ m) / (2.0 * float(m.sum()))
        return found

    def clustering(self, labels: Ints, *, complete: bool = True) -> Clustering:
        """The result for labels (n,)."""
        labels = in_order(labels)
        if (count := int(labels.max()) + 1) != self.k:
            raise AssertionError(f"{count} clusters found where {self.k} were wanted")
        return Clustering(labels, self.inertia(labels), complete)


def squared_distances(features: ArrayLike) -> Floats:
    """(n × n) squared distances of the rows of features (n × d); those of equal rows are exactly zero."""
    rows = checked_features(features)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = rows - rows.mean(0)
        gram = rows @ rows.T
        norms = np.diag(gram)
        both = norms[:, None] + norms[None, :]
        squared = np.maximum(both - 2.0 * gram, 0.0)
    if not np.isfinite(squared).all():
        raise OptionError("the distances of the features overflow: divide the features by their largest entry")
    for i in range(len(rows)):
        close = i + np.flatnonzero(squared[i, i:] <= CANCELLED * both[i, i:])
        difference = rows[close] - rows[i]
        squared[i, close] = squared[close, i] = np.einsum("jd,jd->j", difference, difference)
    return squared


def checked_features(features: ArrayLike) -> Floats:
    """(n × d) in double precision, finite, at least one row."""
    rows = np.asarray(features, np.float64)
    if rows.ndim != 2 or not len(rows):
        raise OptionError(f"features must be (channels × d) with at least one channel, not of shape {rows.shape}")
    _check_finite(rows, "features")
    return rows


def checked_square(matrix: ArrayLike, name: str) -> Floats:
    """(n × n) in double precision, finite, at least one row."""
    found = np.asarray(matrix, np.float64)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not len(found):
        raise OptionError(f"{name} must be a square matrix with at least one row, not of shape {found.shape}")
    _check_finite(found, name)
    return found


def checked_masses(masses: ArrayLike | None, n: int) -> Floats:
    """(n,) in double precision, none negative, not all zero."""
    if masses is None:
        return np.ones(n)
    found = np.array(masses, np.float64)
    if found.shape != (n,):
        raise OptionError(f"masses have shape {found.shape}, but there are {n} channels: give one mass for each")
    _check_finite(found, "masses")
    if found.min() < 0.0 or found.max() <= 0.0:
        raise OptionError(f"masses must not be negative nor all zero; they run from {found.min():g} to {found.max():g}")
    return found


def checked_labels(labels: ArrayLike, n: int, k: int | None = None) -> Ints:
    """(n,) integers; where k is given, of 0 … k − 1."""
    found = np.asarray(labels)
    if found.shape != (n,) or found.dtype.kind not in "iu":
        raise OptionError(
            f"labels must be {n} integers, one for each channel, not {found.dtype} of shape {found.shape}"
        )
    if k is not None and not (found.min() >= 0 and found.max() < k):
        raise OptionError(f"labels run from {found.min()} to {found.max()}: for {k} clusters they must be 0 … {k - 1}")
    return found.astype(np.int64)


def in_order(labels: Ints) -> Ints:
    """(n,) the same partition with labels in order of first appearance, without gaps."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _check_finite(values: Floats, name: str) -> None:
    if not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))[0]
        raise OptionError(f"{name} must be finite: entry {tuple(int(b) for b in bad)} is {values[tuple(bad)]}")
