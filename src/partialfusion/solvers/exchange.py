"""Exchange: better a clustering by moving and swapping channels."""

from __future__ import annotations

from numpy.typing import ArrayLike

from .clustering import Clustering, Problem, checked_labels, checked_square, in_order, squared_distances


def exchange(features: ArrayLike, labels: ArrayLike, masses: ArrayLike | None = None) -> Clustering:
    """A clustering of the rows of features (n × d) that no single change betters, found from labels (n,).

    Tried are, always the best first: moving a channel to another cluster, counting how both centres shift (Hartigan's
    method, which goes on where Lloyd's has ended); merging two clusters while a channel elsewhere becomes one of its
    own; swapping two channels. The number of clusters stays, and the result is never worse than the start.
    """
    return exchange_of(squared_distances(features), labels, masses)


def exchange_of(squared: ArrayLike, labels: ArrayLike, masses: ArrayLike | None = None) -> Clustering:
    """`exchange` on squared distances (n × n)."""
    from ._search import settled
    from ._state import labels_of

    start = in_order(checked_labels(labels, len(checked_square(squared, "squared distances"))))
    k = int(start.max()) + 1
    problem = Problem.of(squared, k, masses)
    before = problem.clustering(start)
    if problem.trivial is not None:
        return before
    after = problem.clustering(labels_of(settled(problem.squared, problem.heavy, start, k)))
    return after if after.inertia < before.inertia else before
