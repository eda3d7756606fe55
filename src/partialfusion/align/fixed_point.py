"""Coordinate descent over all spaces of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..kernels import Coupling
from .alignment import Alignment, Problem, matched_cost
from .greedy import greedy
from .separate import separate

MAX_SWEEPS = 100
# A solve counts as a change only where it gains more than rounding can, relative to a random matching's cost.
LEAST_GAIN = 1e-6


def fixed_point(problem: Problem, *, full: Problem | None = None) -> Alignment:
    """Solve space after space, the others standing still, until no space changes.

    Every solve lowers the global objective or leaves it, so the descent ends. Where it ends depends on where it
    starts: channel i with channel i is a poor start on deep networks, whatever the order of the spaces. It starts
    from the fixed costs where there are any (activations), otherwise from the greedy alignment. Partial fusion
    starts from the solution of full fusion.

    Args:
        problem: what to align.
        full: the same problem with nothing isolated, for the warm start.
    """
    first = full or problem
    start = separate(first) if first.fixed_costs else greedy(first)
    found = _descend(first, start.couplings)
    if full is None:
        return found
    warm = {s: problem.solve(s, full.cost(s, found.couplings)) for s in problem.alphas}
    final = _descend(problem, {**found.couplings, **warm})
    return replace(final, sweeps=found.sweeps + final.sweeps)


def _descend(problem: Problem, start: Mapping[str, Coupling]) -> Alignment:
    couplings = dict(start)
    costs: dict[str, float] = {}
    stale = set(problem.alphas)
    sweeps = 0
    while stale and sweeps < MAX_SWEEPS:
        sweeps += 1
        for space in problem.alphas:
            if space not in stale:
                continue
            stale.discard(space)
            cost = problem.cost(space, couplings)
            new = problem.solve(space, cost)
            near = neighbours(problem, space)
            before, after = matched_cost(cost, couplings[space]), matched_cost(cost, new)
            gain = before - after if space not in near else _true_gain(problem, couplings, space, new)
            if gain > LEAST_GAIN * cost.mean() * len(cost):
                couplings[space] = new
                stale |= near - {space}
            costs[space] = min(before, after)
    return Alignment(couplings, costs, sweeps, not stale)


def _true_gain(problem: Problem, couplings: Mapping[str, Coupling], space: str, new: Coupling) -> float:
    """For a space on both axes of one parameter: there the cost is only the slope of the objective."""
    assert problem.weights is not None
    return problem.weights.objective(couplings) - problem.weights.objective({**couplings, space: new})


def neighbours(problem: Problem, space: str) -> set[str]:
    """Free spaces whose cost depends on the coupling of this one."""
    if problem.weights is None:
        return set()
    near = {s for _, b in problem.weights.bindings(space) for s in problem.weights.others(b)}
    return near & set(problem.alphas)
