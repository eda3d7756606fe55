"""Lloyd's method: every channel to its nearest centre, until none changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from ..core.arrays import Ints
from ..errors import OptionError
from ._rounds import Found, Progress, Search, best_of
from .clustering import Clustering, Problem, checked_features, checked_labels, squared_distances

WORK = 2e7  # of one call of the kernel, in entries of the matrix that it visits


def lloyd(
    features: ArrayLike,
    k: int,
    masses: ArrayLike | None = None,
    *,
    start: ArrayLike | None = None,
    restarts: int = 10,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Clustering:
    """Lloyd's method from a given start, or the best of several from centres drawn as in k-means++.

    A cluster that loses all its channels is given the channel that costs most where it is.

    Args:
        features: (n × d).
        k: number of clusters.
        masses: (n,).
        start: labels (n,) or centres (k × d); there are no restarts then.
        restarts: how many starts to draw.
        seed: the result depends on it, not on the number of workers.
        workers: threads; None for one a core.
        on_progress: is told (restarts done, restarts) now and then. Ctrl-C keeps the best found so far.
    """
    if start is not None and np.ndim(start) == 2:
        start = _nearest(features, start, k)
    squared = squared_distances(features)
    return lloyd_of(
        squared, k, masses, start=start, restarts=restarts, seed=seed, workers=workers, on_progress=on_progress
    )


def lloyd_of(
    squared: ArrayLike,
    k: int,
    masses: ArrayLike | None = None,
    *,
    start: ArrayLike | None = None,
    restarts: int = 10,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Clustering:
    """`lloyd` on squared distances (n × n); start: labels (n,)."""
    from . import _lloyd

    if restarts < 1:
        raise OptionError(f"restarts={restarts}: at least one is needed")
    problem = Problem.of(squared, k, masses)
    n, k = len(problem), problem.k
    if start is not None:
        labels = checked_labels(start, n, k)
        _lloyd.settle(problem.squared, problem.heavy, labels, *_lloyd.space(n, k))
        return problem.clustering(labels)
    if (trivial := problem.trivial) is not None:
        return problem.clustering(trivial)
    chunk = max(1, int(WORK / (10 * n * (n + k))))

    def search(first: int) -> Search:
        last = min(first + chunk, restarts)
        found = _lloyd.restarts(problem.squared, problem.heavy, k, first, last, np.uint64(seed % 2**64))
        yield Found(*found, last - first)

    searches: Iterator[Search] = (search(first) for first in range(0, restarts, chunk))
    labels, complete = best_of(searches, restarts, workers=workers, on_progress=on_progress)
    return problem.clustering(labels, complete=complete)


def _nearest(features: ArrayLike, centres: ArrayLike, k: int) -> Ints:
    """(n,) the nearest centre of each channel."""
    rows, middle = checked_features(features), checked_features(centres)
    if middle.shape != (k, rows.shape[1]):
        raise OptionError(
            f"start has shape {middle.shape}: centres must be {(k, rows.shape[1])}, labels {(len(rows),)}"
        )
    shift = rows.mean(0)
    rows, middle = rows - shift, middle - shift
    return np.argmin(np.einsum("cd,cd->c", middle, middle) - 2.0 * rows @ middle.T, axis=1)
