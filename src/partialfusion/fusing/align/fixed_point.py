"""Coordinate descent over all spaces of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...kernels import Coupling
from .alignment import Alignment, Problem, Report, Work, matched_cost, unheard
from .greedy import greedy
from .separate import FixedCosts, separate

MAX_SWEEPS = 100
# A solve counts as a change only where it gains this fraction of a random matching's cost: far more than rounding, and
# far less than shows in a fused network.
LEAST_GAIN = 1e-4
FIRST = 0.3  # of the work: where the descent starts from


def fixed_point(
    problem: Problem, *, known: Mapping[str, Coupling] | None = None, report: Report = unheard
) -> Alignment:
    """Solve space after space, the others standing still, until no space changes.

    Every solve lowers the global objective or leaves it, so the descent ends. Where it ends depends on where it
    starts: channel i with channel i is a poor start on deep networks, whatever the order of the spaces. It starts
    from the fixed costs where there are any (activations), otherwise from the greedy alignment.

    Args:
        problem: what to align.
        known: couplings of spaces that are not free.
        report: called with the fraction that is done.
    """
    fixed = FixedCosts(problem.fixed_costs, split=problem.split)
    measured = separate(problem, fixed).couplings if problem.fixed_costs else {}
    rest = {s: a for s, a in problem.alphas.items() if s not in measured}
    first = replace(problem, alphas=rest)
    start = greedy(first, {**measured, **(known or {})}, report=lambda done: report(FIRST * done))
    return _descend(problem, start.couplings, lambda done: report(FIRST + (1 - FIRST) * done))


def refine(problem: Problem, full: Alignment, costs: FixedCosts, *, report: Report = unheard) -> Alignment:
    """The alignment of a partial fusion, from that of full fusion on.

    Args:
        problem: what to align.
        full: the alignment of the same problem with nothing isolated.
        costs: the cost of every free space at that alignment.
        report: called with the fraction that is done.
    """
    start, work = dict(full.couplings), Work(problem)
    for step in problem.steps():
        start.update(zip(step, costs.solve(problem, step), strict=True))
        report(FIRST * work.after(step))
    final = _descend(problem, start, lambda done: report(FIRST + (1 - FIRST) * done))
    return replace(final, sweeps=full.sweeps + final.sweeps)


def _descend(problem: Problem, start: Mapping[str, Coupling], report: Report) -> Alignment:
    """Sweep until nothing changes. Nobody knows how many sweeps that takes: each counts as half of what is left."""
    couplings = dict(start)
    costs: dict[str, float] = {}
    steps = problem.steps()
    stale = set(steps)
    sweeps = 0
    while stale and sweeps < MAX_SWEEPS:
        sweeps += 1
        work = Work(problem)
        for step in steps:
            done = work.after(step)
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
            report(1 - 0.5 ** (sweeps - 1) * (1 - 0.5 * done))
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
