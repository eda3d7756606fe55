"""Alignment of spaces whose costs do not depend on each other: one solve each."""

from __future__ import annotations

import numpy as np

from .alignment import Alignment, Problem, matched_cost


def separate(problem: Problem) -> Alignment:
    """Couple every space by its own fixed cost; spaces without one, and bundles without any, are left out."""
    couplings = {s: c for s, c in problem.identity().items() if s not in problem.alphas}
    costs = {}
    for step in problem.steps():
        if any(space in problem.fixed_costs for space in step):
            found = [problem.fixed_costs.get(space, np.zeros(problem.widths[space])) for space in step]
            for space, cost, coupling in zip(step, found, problem.solve(step, found), strict=True):
                couplings[space] = coupling
                costs[space] = matched_cost(cost, coupling)
    return Alignment(couplings, costs)
