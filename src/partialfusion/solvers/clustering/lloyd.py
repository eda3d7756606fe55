"""Lloyd's method: every channel to its nearest centre, until none changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from ...errors import OptionError
from .parallel import Found, Progress, Search, best_of
from .problem import Clustering, Problem, checked_labels

WORK = 2e7  # entries of the matrix that one call of the compiled part visits


def lloyd(
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
    """Lloyd's method from a given start, or the best of several from centres drawn as in k-means++.

    A cluster that loses all its channels is given the channel that costs most where it is.

    Args:
        squared: (n × n) squared distances of the channels.
        k: number of clusters.
        masses: (n,) masses of the channels; None for equal ones.
        start: (n,) labels to start from; there are no restarts then.
        restarts: number of starts to draw.
        seed: random seed; the result depends on it, not on the number of workers.
        workers: number of threads; None for one a core.
        on_progress: called with (restarts done, restarts) now and then. Ctrl-C keeps the best found so far.
    """
    from . import _lloyd

    if restarts < 1:
        raise OptionError(f"restarts={restarts}: at least one is needed")
    problem = Problem.of(squared, k, masses)
    n, k = len(problem), problem.k
    if start is not None:
        labels = checked_labels(start, n, k)
        _lloyd.iterate(problem.squared, problem.scaled_masses, labels, *_lloyd.workspace(n, k))
        return problem.clustering(labels)
    if (trivial := problem.trivial) is not None:
        return problem.clustering(trivial)
    chunk = max(1, int(WORK / (10 * n * (n + k))))

    def search(first: int) -> Search:
        last = min(first + chunk, restarts)
        found = _lloyd.restarts(problem.squared, problem.scaled_masses, k, first, last, np.uint64(seed % 2**64))
        yield Found(*found, last - first)

    searches: Iterator[Search] = (search(first) for first in range(0, restarts, chunk))
    labels, complete = best_of(searches, restarts, workers=workers, on_progress=on_progress)
    return problem.clustering(labels, complete=complete)
