"""Coordinate descent over all spaces of the graph."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..kernels import Coupling
from ..matching import couple
from .alignment import Alignment, Problem, matched_cost
from .greedy import greedy
from .separate import separate

log = logging.getLogger(__name__)

MAX_SWEEPS = 100
# A solve counts as a change only where it gains more than rounding can, relative to a random matching's cost.
LEAST_GAIN = 1e-6


def fixed_point(problem: Problem, *, full: Problem | None = None, restarts: int = 1, seed: int = 0) -> Alignment:
    """Solve space after space, the others standing still, until no space changes.

    Every solve lowers the global objective or leaves it, so the descent ends. Where it ends depends on where it
    starts and on the order of the spaces: starts are the fixed costs where there are any, otherwise the greedy
    alignment and channel i with channel i, the latter again in `restarts` random orders; the best is kept. Partial
    fusion warm-starts from the solution of full fusion.

    Args:
        problem: what to align.
        full: the same problem with nothing isolated, for the warm start.
        restarts: random orders to try beside the order of computation.
        seed: of the random orders.
    """
    best = _best_start(full or problem, restarts, seed)
    if full is None:
        return best
    warm = {s: couple(full.cost(s, best.couplings), problem.matched_alpha(s)) for s in problem.alphas}
    final = _descend(problem, {**best.couplings, **warm}, list(problem.alphas))
    return replace(final, sweeps=best.sweeps + final.sweeps)


def _best_start(problem: Problem, restarts: int, seed: int) -> Alignment:
    order = list(problem.alphas)
    starts: list[tuple[Mapping[str, Coupling], Sequence[str]]] = []
    if problem.fixed_costs:
        starts.append((separate(problem).couplings, order))
    else:
        starts.append((greedy(problem).couplings, order))
        identity = problem.identity()
        if all(s in identity for s in order):
            random = np.random.default_rng(seed)
            starts.append((identity, order))
            starts += [(identity, list(random.permutation(order))) for _ in range(restarts)]
    found = []
    for couplings, spaces in starts:
        alignment = _descend(problem, couplings, spaces)
        found.append((problem.objective(alignment.couplings) if len(starts) > 1 else 0.0, alignment))
        log.debug("objective %.6f after %d sweeps", found[-1][0], alignment.sweeps)
    return min(found, key=lambda pair: pair[0])[1]


def _descend(problem: Problem, start: Mapping[str, Coupling], order: Sequence[str]) -> Alignment:
    couplings = dict(start)
    costs: dict[str, float] = {}
    stale = set(order)
    sweeps = 0
    while stale and sweeps < MAX_SWEEPS:
        sweeps += 1
        for space in order:
            if space not in stale:
                continue
            stale.discard(space)
            cost = problem.cost(space, couplings)
            before = matched_cost(cost, couplings[space])
            new = problem.solve(space, cost)
            after = matched_cost(cost, new)
            if before - after > LEAST_GAIN * cost.mean() * len(cost):
                couplings[space] = new
                stale |= neighbours(problem, space)
            costs[space] = min(before, after)
    return Alignment(couplings, costs, sweeps, not stale)


def neighbours(problem: Problem, space: str) -> set[str]:
    """Free spaces whose cost depends on the coupling of this one."""
    if problem.weights is None:
        return set()
    near = {s for _, b in problem.weights.bindings(space) for s in problem.weights.others(b)}
    return near & set(problem.alphas)
