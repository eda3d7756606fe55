"""Coordinate descent over all spaces of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...core.arrays import Floats
from ...core.progress import hearing
from ...kernels import Coupling
from .alignment import Ahead, Alignment, Problem, Report, Solved, Work, matched_cost, unheard
from .greedy import greedy
from .separate import FixedCosts, separate

MAX_SWEEPS = 100
# A solve counts as a change only where it gains this fraction of a random matching's cost: far more than rounding, and
# far less than shows in a fused network. The same goes for all solves of a sweep together.
LEAST_GAIN = 1e-4
FIRST = 0.3  # of the work: where the descent starts from


def fixed_point(
    problem: Problem, *, known: Mapping[str, Coupling] | None = None, report: Report = unheard
) -> Alignment:
    """Solve space after space, the others standing still, until hardly anything is gained.

    Every solve lowers the global objective or leaves it, so the descent ends. Where it ends depends on where it
    starts: channel i with channel i is a poor start on deep networks, whatever the order of the spaces. It starts
    from the fixed costs where there are any (activations), otherwise from the greedy alignment.

    Args:
        problem: what to align.
        known: couplings of spaces that are not free.
        report: called with the fraction that is done.
    """
    fixed = FixedCosts(problem.fixed_costs, split=problem.split, masses=problem.masses)
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
    start, work = dict(full.couplings), Work(problem, lambda done: report(FIRST * done))
    shared = problem.tasks.share(costs), problem.tasks.share(problem)
    steps = problem.steps()
    calls = [(*shared, step) for step in steps]
    results = problem.tasks.run(FixedCosts.solve, calls, short=problem.is_short(steps))
    with hearing(work):
        for step, found in zip(steps, results, strict=True):
            start.update(zip(step, found, strict=True))
            work.after(step)
    final = _descend(problem, start, lambda done: report(FIRST + (1 - FIRST) * done))
    return replace(final, sweeps=full.sweeps + final.sweeps)


def _descend(problem: Problem, start: Mapping[str, Coupling], report: Report) -> Alignment:
    """Sweep until hardly anything is gained. Nobody knows how many sweeps that takes: each counts as half of what is
    left."""
    couplings = dict(start)
    costs: dict[str, float] = {}
    ahead: dict[tuple[str, ...], Ahead] = {}
    random: dict[tuple[str, ...], float] = {}
    waves = problem.waves()
    near = {step: problem.neighbours(step) for wave in waves for step in wave}
    stale = set(near)
    shared = problem.tasks.share(problem)
    sweeps = 0
    known: Ahead = {}
    while stale and sweeps < MAX_SWEEPS:
        sweeps += 1
        gained, left = 0.0, 0.5 ** (sweeps - 1)
        work = Work(problem, lambda done, left=left: report(1 - left * (1 - 0.5 * done)))  # type: ignore[misc]
        with hearing(work):
            for wave in waves:
                chosen = [step for step in wave if step in stale]
                stale.difference_update(chosen)
                work.after(*(step for step in wave if step not in chosen))
                for step, solved in problem.solved(_improved, chosen, couplings, shared):
                    random[step] = solved.random
                    if solved.gain > LEAST_GAIN * solved.random:
                        gained += solved.gain
                        couplings.update(solved.couplings)
                        stale |= {s for s in near if s != step and near[step] & set(s)}
                    costs.update(solved.costs)
                    ahead[step] = solved.ahead
                    work.after(step)
        known = {key: coupling for step in ahead.keys() - stale for key, coupling in ahead[step].items()}
        if gained <= LEAST_GAIN * sum(random.values()):
            stale.clear()
    return Alignment(couplings, costs, sweeps, not stale, known)


def _improved(problem: Problem, step: tuple[str, ...], couplings: Mapping[str, Coupling]) -> Solved:
    """The cheapest couplings of a step, and what they gain over those it has."""
    now = [problem.cost(s, couplings) for s in step]
    new = dict(zip(step, problem.solve(step, now), strict=True))
    before = [matched_cost(c, couplings[s]) for s, c in zip(step, now, strict=True)]
    after = [matched_cost(c, new[s]) for s, c in zip(step, now, strict=True)]
    gain = sum(before) - sum(after)
    beside_itself = bool(problem.neighbours(step) & set(step))
    if beside_itself:
        gain = _true_gain(problem, couplings, new)
    random = sum(float(c.mean()) * len(c) for c in now)
    costs = {s: min(b, a) for s, b, a in zip(step, before, after, strict=True)}
    ahead = {} if beside_itself else _ahead(problem, dict(zip(step, now, strict=True)), couplings)
    return Solved(new, costs, gain, random, ahead)


def _ahead(problem: Problem, costs: Mapping[str, Floats], couplings: Mapping[str, Coupling]) -> Ahead:
    """The couplings of the sizes to come, where there is no room to keep what the costs are made of."""
    found = FixedCosts(costs, problem.ahead, problem.split, problem.masses)
    for space in costs:
        if space in problem.ahead and space not in problem.blocks and not problem.is_kept(space, couplings):
            found.couple(space, problem.ahead[space][0])
    return found.known


def _true_gain(problem: Problem, couplings: Mapping[str, Coupling], new: Mapping[str, Coupling]) -> float:
    """For spaces on several axes of one parameter: there the cost is only the slope of the objective."""
    assert problem.weights is not None
    gain = problem.weights.objective(couplings) - problem.weights.objective({**couplings, **new})
    for space, coupling in new.items():
        if space in problem.fixed_costs:
            cost = problem.fixed_costs[space]
            gain += matched_cost(cost, couplings[space]) - matched_cost(cost, coupling)
    return gain
