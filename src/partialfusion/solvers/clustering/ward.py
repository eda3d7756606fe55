"""Ward's method: merge the two clusters whose merging costs least, or nearly, until k are left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from ...errors import OptionError
from .parallel import Found, Progress, Search, best_of
from .problem import Clustering, Problem

WORK = 2e7  # entries of the matrix that one call of the compiled part visits: some tens of milliseconds


def ward(squared: ArrayLike, k: int, masses: ArrayLike | None = None) -> Clustering:
    """Greedy Ward clustering.

    Args:
        squared: (n × n) squared distances of the channels.
        k: number of clusters.
        masses: (n,) masses of the channels; None for equal ones.
    """
    from ._ward import greedy

    problem = Problem.of(squared, k, masses)
    return problem.clustering(greedy(problem.squared, problem.scaled_masses, problem.k))


def stochastic_ward(
    squared: ArrayLike,
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
        squared: (n × n) squared distances of the channels.
        k: number of clusters.
        masses: (n,) masses of the channels; None for equal ones.
        restarts: number of clusterings to draw.
        seed: random seed; the result depends on it, not on the number of workers.
        workers: number of threads; None for one a core.
        on_progress: called with (restarts done, restarts) now and then. Ctrl-C keeps the best found so far.
    """
    from . import _ward

    if restarts < 1:
        raise OptionError(f"restarts={restarts}: at least one is needed")
    problem = Problem.of(squared, k, masses)
    if (labels := problem.trivial) is not None:
        return problem.clustering(labels)
    n, k = len(problem), problem.k
    rows = _ward.rows_of(problem.squared, problem.scaled_masses)
    chunk = max(1, int(WORK / (n * n + 20 * n * (n - k))))

    def search(first: int) -> Search:
        last = min(first + chunk, restarts)
        found = _ward.restarts(problem.squared, problem.scaled_masses, rows, k, first, last, np.uint64(seed % 2**64))
        yield Found(*found, last - first)

    searches: Iterator[Search] = (search(first) for first in range(0, restarts, chunk))
    labels, complete = best_of(searches, restarts, workers=workers, on_progress=on_progress)
    return problem.clustering(labels, complete=complete)
