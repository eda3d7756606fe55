"""Greedy alignment: one pass in the order of computation, every space by what writes it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...blueprint import AxisBinding
from ...core.arrays import Floats
from ...core.progress import hearing
from ...features import WeightCosts
from ...features.weights import Couplings
from .alignment import Alignment, Problem, Report, Solved, Work, matched_cost, unheard


def _cheapest(problem: Problem, step: tuple[str, ...], couplings: Couplings) -> Solved:
    """The cheapest couplings of a step by what is known."""
    found = [_known_cost(problem, space, couplings) for space in step]
    new = dict(zip(step, problem.solve(step, found), strict=True))
    return Solved(new, {s: matched_cost(c, new[s]) for s, c in zip(step, found, strict=True)})


def greedy(problem: Problem, known: Couplings | None = None, *, report: Report = unheard) -> Alignment:
    """Couple space after space by the weights that write it, as far as what they read is already coupled.

    A space that nothing known writes is coupled by everything known about it; without any knowledge, channel i goes
    with channel i where widths are equal.

    Args:
        problem: what to align.
        known: couplings of spaces that are not free.
        report: called with the fraction that is done.
    """
    couplings = {s: c for s, c in problem.identity().items() if s not in problem.alphas} | dict(known or {})
    costs: dict[str, float] = {}
    work = Work(problem, report, _products(problem, couplings))
    shared = problem.tasks.share(problem)
    with hearing(work):
        for wave in problem.waves():
            for step, solved in problem.solved(_cheapest, wave, couplings, shared):
                couplings.update(solved.couplings)
                costs.update(solved.costs)
                work.after(step)
    return Alignment(couplings, costs)


def _products(problem: Problem, known: Collection[str]) -> dict[tuple[str, ...], float]:
    """Step → operations of the products that its costs are made of, when those before it are coupled."""
    seen, found = set(known), {}
    for step in problem.steps():
        weights = problem.weights
        found[step] = 0.0 if weights is None else sum(weights.operations(s, _telling(weights, s, seen)) for s in step)
        seen.update(step)
    return found


def _telling(weights: WeightCosts, space: str, known: Collection[str]) -> list[tuple[AxisBinding, AxisBinding]]:
    """The axes that describe a space as far as the spaces beside them are known; those that write it, if there are
    any."""
    found = [(a, b) for a, b in weights.bindings(space) if all(s in known for s in weights.others(b))]
    return [(a, b) for a, b in found if b.role != "reads"] or found


def _known_cost(problem: Problem, space: str, couplings: Couplings) -> Floats:
    fixed = problem.fixed_costs.get(space)
    if problem.weights is None:
        return np.zeros(problem.widths[space]) if fixed is None else fixed
    cost = problem.weights.cost(space, couplings, only=_telling(problem.weights, space, couplings))
    return cost if fixed is None else cost + fixed
