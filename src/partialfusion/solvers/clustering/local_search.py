"""Local search: a clustering refined by moving and swapping channels, and the default method built on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ...errors import OptionError
from .parallel import Found, Progress, Search, best_of
from .problem import Clustering, Problem, checked_labels, checked_square, in_order

CHAINS = 4  # independent searches, the first from greedy Ward, the others from a stochastic one
ROUNDS = 1  # rounds of each at effort 1, times the number of channels
WORK = 50_000  # rounds times channels in one call of the compiled part: some tens of milliseconds


def exchange(squared: ArrayLike, labels: ArrayLike, masses: ArrayLike | None = None) -> Clustering:
    """A clustering that no single change improves, found from a given one.

    The changes tried, always the best first, are: moving a channel to another cluster, counting how both centres shift
    (Hartigan's method, which goes on where Lloyd's has ended); merging two clusters while a channel elsewhere becomes
    one of its own; swapping two channels. The number of clusters stays, and the result is never worse than the start.

    Args:
        squared: (n × n) squared distances of the channels.
        labels: (n,) clusters to start from.
        masses: (n,) masses of the channels; None for equal ones.
    """
    from ._local_search import settled
    from ._state import labels_of

    start = in_order(checked_labels(labels, len(checked_square(squared, "squared distances"))))
    k = int(start.max()) + 1
    problem = Problem.of(squared, k, masses)
    before = problem.clustering(start)
    if problem.trivial is not None:
        return before
    after = problem.clustering(labels_of(settled(problem.squared, problem.scaled_masses, start, k)))
    return after if after.inertia < before.inertia else before


def cluster(
    squared: ArrayLike,
    k: int,
    masses: ArrayLike | None = None,
    *,
    effort: float = 1.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Clustering:
    """k clusters of low inertia: the method to use.

    Starts from Ward's method and descends as `exchange` does. Then, round by round, a few clusters are merged and
    others broken up at random, the neighbourhood is repaired by another descent, and the result is kept unless it is
    worse. A round costs O(n); a few hundred of them find clusterings that tens of thousands of restarts of the
    stochastic method do not.

    Args:
        squared: (n × n) squared distances of the channels.
        k: number of clusters.
        masses: (n,) masses of the channels; None for equal ones.
        effort: factor on the number of rounds, which grows with n; 0 for none.
        seed: random seed; the result depends on it, not on the number of workers.
        workers: number of threads; None for one a core.
        on_progress: called with (rounds done, rounds) now and then. Ctrl-C keeps the best found so far.
    """
    from . import _local_search, _state, _ward
    from ._random import seeded

    if not 0.0 <= effort < np.inf:
        raise OptionError(f"effort={effort} must be a number that is not negative")
    problem = Problem.of(squared, k, masses)
    if (trivial := problem.trivial) is not None:
        return problem.clustering(trivial)
    n, k = len(problem), problem.k
    given = problem.squared, problem.scaled_masses
    rounds = round(effort * ROUNDS * n)
    step = max(1, WORK // n)

    def search(chain: int) -> Search:
        random = seeded(np.uint64(seed % 2**64), chain)
        labels = _ward.greedy(*given, k) if chain == 0 else _ward.stochastic(*given, k, random)
        state = _local_search.settled(*given, labels, k)
        kept = _state.state_of(*given, labels, k)
        yield Found(_state.inertia_of(state), _state.labels_of(state), 0)
        for first in range(0, rounds, step):
            count = min(step, rounds - first)
            _local_search.rounds(state, kept, count, random)
            if first + count == rounds:
                _local_search.descend(state, True)
            yield Found(_state.inertia_of(state), _state.labels_of(state), count)

    chains = CHAINS if rounds else 1
    labels, complete = best_of(map(search, range(chains)), chains * rounds, workers=workers, on_progress=on_progress)
    return problem.clustering(labels, complete=complete)
