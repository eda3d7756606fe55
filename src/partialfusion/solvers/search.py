"""The default method of clustering: Ward's clusters, bettered by iterated local search."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import OptionError
from ._rounds import Found, Progress, Search, best_of
from .clustering import Clustering, Problem, squared_distances

CHAINS = 4  # independent searches, the first from greedy Ward, the others from a stochastic one
ROUNDS = 1  # of each, times the number of channels, at effort 1
WORK = 50_000  # of one call of the kernel, in rounds times channels: some tens of milliseconds


def cluster(
    features: ArrayLike,
    k: int,
    masses: ArrayLike | None = None,
    *,
    effort: float = 1.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Clustering:
    """Cluster the rows of features (n × d) into k clusters of low inertia: the method to use.

    Starts from Ward's method and descends as `exchange` does. Then, round by round, a few clusters are merged and
    others broken up at random, the neighbourhood is repaired by another descent, and the result is kept unless it is
    worse. A round costs O(n); a few hundred of them find clusterings that tens of thousands of restarts of the
    stochastic method do not.

    Args:
        features: (n × d).
        k: number of clusters.
        masses: (n,).
        effort: multiplies the number of rounds, which grows with n; 0 for none.
        seed: the result depends on it, not on the number of workers.
        workers: threads; None for one a core.
        on_progress: is told (rounds done, rounds) now and then. Ctrl-C keeps the best found so far.
    """
    squared = squared_distances(features)
    return cluster_of(squared, k, masses, effort=effort, seed=seed, workers=workers, on_progress=on_progress)


def cluster_of(
    squared: ArrayLike,
    k: int,
    masses: ArrayLike | None = None,
    *,
    effort: float = 1.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Clustering:
    """`cluster` on squared distances (n × n)."""
    from . import _search, _state, _ward
    from ._jit import seeded

    if not 0.0 <= effort < np.inf:
        raise OptionError(f"effort={effort} must be a number that is not negative")
    problem = Problem.of(squared, k, masses)
    if (trivial := problem.trivial) is not None:
        return problem.clustering(trivial)
    n, k = len(problem), problem.k
    rounds = round(effort * ROUNDS * n)
    step = max(1, WORK // n)

    def search(chain: int) -> Search:
        state = seeded(np.uint64(seed % 2**64), chain)
        if chain == 0:
            labels = _ward.greedy(problem.squared, problem.heavy, k)
        else:
            labels = _ward.drawn(problem.squared, problem.heavy, k, state)
        now = _search.settled(problem.squared, problem.heavy, labels, k)
        kept = _state.state_of(problem.squared, problem.heavy, labels, k)
        yield Found(_state.inertia_of(now), _state.labels_of(now), 0)
        for first in range(0, rounds, step):
            count = min(step, rounds - first)
            _search.rounds(now, kept, count, state)
            if first + count == rounds:
                _search.descend(now, True)
            yield Found(_state.inertia_of(now), _state.labels_of(now), count)

    chains = CHAINS if rounds else 1
    labels, complete = best_of(map(search, range(chains)), chains * rounds, workers=workers, on_progress=on_progress)
    return problem.clustering(labels, complete=complete)
