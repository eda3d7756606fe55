"""Alignment of spaces whose costs do not depend on each other: one solve each."""

from __future__ import annotations

from .alignment import Alignment, Problem, matched_cost


def separate(problem: Problem) -> Alignment:
    """Couple every space by its own fixed cost; spaces without one keep channel i with channel i."""
    couplings = problem.identity()
    costs = {}
    for space, cost in problem.fixed_costs.items():
        couplings[space] = problem.solve(space, cost)
        costs[space] = matched_cost(cost, couplings[space])
    return Alignment(couplings, costs)
