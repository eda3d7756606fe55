"""Coordinate descent over all spaces of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...kernels import Coupling
from .alignment import Alignment, Problem, matched_cost
from .greedy import greedy
from .separate import FixedCosts, separate

MAX_SWEEPS = 100
# A solve counts as a change only where it gains this fraction of a random matching's cost: far more than rounding, and
# far less than shows in a fused network.
LEAST_GAIN = 1e-4


def fixed_point(problem: Problem, *, known: Mapping[str, Coupling] | None = None) -> Alignment:
    """Solve space after space, the others standing still, until no space changes.

    Every solve lowers the global objective or leaves it, so the descent ends. Where it ends depends on where it
    starts: channel i with channel i is a poor start on deep networks, whatever the order of the spaces. It starts
    from the fixed costs where there are any (activations), otherwise from the greedy alignment.

    Args:
        problem: what to align.
        known: couplings of spaces that are not free.
    """
    fixed = FixedCosts(problem.fixed_costs, split=problem.split)
    measured = separate(problem, fixed).couplings if problem.fixed_costs else {}
    rest = {s: a for s, a in problem.alphas.items() if s not in measured}
    start = greedy(replace(problem, alphas=rest), {**measured, **(known or {})})
    return _descend(problem, start.couplings)


def refine(problem: Problem, full: Alignment, costs: FixedCosts) -> Alignment:
    """The alignment of a partial fusion, from that of full fusion on.

    Args:
        problem: what to align.
        full: the alignment of the same problem with nothing isolated.
        costs: the cost of every free space at that alignment.
    """
    start = dict(full.couplings)
    for step in problem.steps():
        start.update(zip(step, costs.solve(problem, step), strict=True))
    final = _descend(problem, start)
    return replace(final, sweeps=full.sweeps + final.sweeps)


def _descend(problem: Problem, start: Mapping[str, Coupling]) -> Alignment:
    couplings = dict(start)
    costs: dict[str, float] = {}
    steps = problem.steps()
    stale = set(steps)
    sweeps = 0
    while stale and sweeps < MAX_SWEEPS:
        sweeps += 1
        for step in steps:
            if step not in stale:
                continue
            stale.discard(step)
            now = [problem.cost(s, couplings) for s in step]
            new = dict(zip(step, problem.solve(step, now), strict=True))
            near = {n for s in step for n in neighbours(problem, s)}
            before = [matched_cost(c, couplings[s]) for s, c in zip(step, now, strict=True)]
            after = [matched_cost(c, new[s]) for s, c in zip(step, now, strict=True)]
            gain = sum(before) - sum(after)
            if near & set(step):
                gain = _true_gain(problem, couplings, new)
            if gain > LEAST_GAIN * sum(c.mean() * len(c) for c in now):
                couplings.update(new)
                stale |= {s for s in steps if s != step and near & set(s)}
            costs.update({s: min(b, a) for s, b, a in zip(step, before, after, strict=True)})
    return Alignment(couplings, costs, sweeps, not stale)


def _true_gain(problem: Problem, couplings: Mapping[str, Coupling], new: Mapping[str, Coupling]) -> float:
    """For spaces on several axes of one parameter: there the cost is only the slope of the objective."""
    assert problem.weights is not None
    gain = problem.weights.objective(couplings) - problem.weights.objective({**couplings, **new})
    for space, coupling in new.items():
        if space in problem.fixed_costs:
            cost = problem.fixed_costs[space]
            gain += matched_cost(cost, couplings[space]) - matched_cost(cost, coupling)
    return gain


def neighbours(problem: Problem, space: str) -> set[str]:
    """Free spaces whose cost depends on the coupling of this one."""
    if problem.weights is None:
        return set()
    near = {s for _, b in problem.weights.bindings(space) for s in problem.weights.others(b)}
    return near & set(problem.alphas)
