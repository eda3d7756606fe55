"""Ward's method: merge the two clusters whose merging costs least, or nearly, until k are left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from ..errors import OptionError
from ._rounds import Found, Progress, Search, best_of
from .clustering import Clustering, Problem, squared_distances

WORK = 2e7  # of one call of the kernel, in entries of the matrix that it visits: some tens of milliseconds


def ward(features: ArrayLike, k: int, masses: ArrayLike | None = None) -> Clustering:
    """Greedy Ward clustering of the rows of features (n × d) into k clusters; masses (n,)."""
    return ward_of(squared_distances(features), k, masses)


def ward_of(squared: ArrayLike, k: int, masses: ArrayLike | None = None) -> Clustering:
    """`ward` on squared distances (n × n)."""
    from ._ward import greedy

    problem = Problem.of(squared, k, masses)
    return problem.clustering(greedy(problem.squared, problem.heavy, problem.k))


def stochastic_ward(
    features: ArrayLike,
    k: int,
    masses: ArrayLike | None = None,
    *,
    restarts: int = 1000,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Clustering:
    """The published method: the best of many randomised Ward clusterings.

    A merge costs c = √(2·growth of the inertia). Each step draws among the five cheapest row minima of the costs, with
    probabilities in proportion to exp(−(c − c_min) / mean(c − c_min)); Lloyd's iteration ends a restart.

    Args:
        features: (n × d).
        k: number of clusters.
        masses: (n,).
        restarts: how many clusterings to draw.
        seed: the result depends on it, not on the number of workers.
        workers: threads; None for one a core.
        on_progress: is told (restarts done, restarts) now and then. Ctrl-C keeps the best found so far.
    """
    squared = squared_distances(features)
    return stochastic_ward_of(
        squared, k, masses, restarts=restarts, seed=seed, workers=workers, on_progress=on_progress
    )


def stochastic_ward_of(
    squared: ArrayLike,
    k: int,
    masses: ArrayLike | None = None,
    *,
    restarts: int = 1000,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Clustering:
    """`stochastic_ward` on squared distances (n × n)."""
    from . import _ward

    if restarts < 1:
        raise OptionError(f"restarts={restarts}: at least one is needed")
    problem = Problem.of(squared, k, masses)
    if (labels := problem.trivial) is not None:
        return problem.clustering(labels)
    n, k = len(problem), problem.k
    rows = _ward.rows_of(problem.squared, problem.heavy)
    chunk = max(1, int(WORK / (n * n + 20 * n * (n - k))))

    def search(first: int) -> Search:
        last = min(first + chunk, restarts)
        found = _ward.restarts(problem.squared, problem.heavy, rows, k, first, last, np.uint64(seed % 2**64))
        yield Found(*found, last - first)

    searches: Iterator[Search] = (search(first) for first in range(0, restarts, chunk))
    labels, complete = best_of(searches, restarts, workers=workers, on_progress=on_progress)
    return problem.clustering(labels, complete=complete)
