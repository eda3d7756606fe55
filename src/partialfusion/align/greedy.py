"""Greedy alignment: one pass in the order of computation, every space by what writes it."""

from __future__ import annotations

import numpy as np

from .alignment import Alignment, Problem, matched_cost


def greedy(problem: Problem) -> Alignment:
    """Couple space after space by the weights that write it, as far as what they read is already coupled.

    A space that nothing known writes is coupled by everything known about it; without any knowledge, channel i goes
    with channel i where widths are equal.
    """
    couplings = {s: c for s, c in problem.identity().items() if s not in problem.alphas}
    costs = {}
    for space in problem.alphas:
        cost = np.zeros(problem.widths[space]) + problem.fixed_costs.get(space, 0.0)
        if problem.weights is not None:
            known = [
                (a, b)
                for a, b in problem.weights.bindings(space)
                if all(s in couplings for s in problem.weights.others(b))
            ]
            writing = [(a, b) for a, b in known if b.role != "reads"]
            cost += problem.weights.cost(space, couplings, only=writing or known)
        couplings[space] = problem.solve(space, cost)
        costs[space] = matched_cost(cost, couplings[space])
    return Alignment(couplings, costs)
