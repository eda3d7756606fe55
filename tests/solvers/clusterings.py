"""What the tests of clustering share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from partialfusion.solvers import (
    Clustering,
    cluster,
    exchange,
    lloyd,
    squared_distances,
    stochastic_ward,
    ward,
    zip_pairs,
)

# On squared distances, or on the covariance for zip_pairs.
ON_MATRICES: dict[str, Callable[..., Clustering]] = {
    "ward": ward,
    "stochastic_ward": lambda d, k, m=None: stochastic_ward(d, k, m, restarts=3),
    "lloyd": lambda d, k, m=None: lloyd(d, k, m, restarts=3),
    "cluster": cluster,
    "zip_pairs": zip_pairs,
    "exchange": lambda d, k, m=None: exchange(d, np.arange(len(d)) % k, m),
}


def on_features(name: str) -> Callable[..., Clustering]:
    """A solver as a function of features (n × d)."""
    matrix = covariance if name == "zip_pairs" else squared_distances
    return lambda x, k, m=None: ON_MATRICES[name](matrix(x), k, m)


def centred(x: np.ndarray) -> np.ndarray:
    """Rows without their means; those of constant rows are exactly zero."""
    x = np.asarray(x, float)
    found = x - x.mean(1, keepdims=True)
    found[np.ptp(x, axis=1) == 0.0] = 0.0
    return found


def covariance(x: np.ndarray) -> np.ndarray:
    return centred(x) @ centred(x).T


def compared(name: str, x: np.ndarray) -> np.ndarray:
    """What a solver compares of the rows: zip_pairs looks at how they vary, not at their means."""
    return centred(x) if name == "zip_pairs" else x


SOLVERS = {name: on_features(name) for name in ON_MATRICES}


def blobs(n: int, seed: int = 0, *, d: int = 8, centres: int = 12) -> np.ndarray:
    """Rows that are noisy copies of fewer rows, as the channels of two networks are."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(centres, d))[rng.integers(0, centres, n)] + 0.5 * rng.normal(size=(n, d))


def inertia(x: np.ndarray, labels: np.ndarray, masses: np.ndarray | None = None) -> float:
    """The definition, with centres."""
    x = np.asarray(x, float)
    m = np.ones(len(x)) if masses is None else masses
    total = 0.0
    for c in np.unique(labels):
        own = labels == c
        if m[own].sum() > 0:
            centre = np.average(x[own], axis=0, weights=m[own])
            total += float((m[own] * ((x[own] - centre) ** 2).sum(1)).sum())
    return total


def check(found: Clustering, x: np.ndarray, k: int, masses: np.ndarray | None = None) -> None:
    assert found.complete
    assert found.labels.dtype == np.int64
    first = [int(np.argmax(found.labels == c)) for c in range(k)]
    assert set(found.labels) == set(range(k))
    assert first == sorted(first)
    assert found.inertia == pytest.approx(inertia(x, found.labels, masses), rel=1e-9, abs=1e-12)
