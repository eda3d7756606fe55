"""Alignment of spaces whose costs do not depend on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.arrays import Floats
from ...kernels import Coupling
from ...solvers import MassPair, couplings
from .alignment import Alignment, Problem, matched_cost


@dataclass(frozen=True)
class FixedCosts:
    """Costs of some spaces, and the couplings they give; all sizes of a space that are expected are solved in one run.

    Attributes:
        costs: space → (n × m) cost.
        alphas: space → isolated fractions that will be asked for; others are solved when they are.
        split: leave channels of unequal widths fused in part.
        masses: space → masses of the channels of both models, where they are not equal.
        known: space and isolated fraction → the coupling, as far as it was solved.
    """

    costs: Mapping[str, Floats]
    alphas: Mapping[str, Sequence[float]] = field(default_factory=dict)
    split: bool = False
    masses: Mapping[str, MassPair] = field(default_factory=dict)
    known: dict[tuple[str, float], Coupling] = field(default_factory=dict)

    def couple(self, space: str, alpha: float) -> Coupling:
        """The cheapest coupling of a space that leaves the fraction alpha isolated."""
        if (space, alpha) not in self.known:
            wanted = sorted({alpha, *self.alphas.get(space, ())})
            found = couplings(self.costs[space], wanted, masses=self.masses.get(space), split=self.split)
            self.known.update({(space, a): c for a, c in zip(wanted, found, strict=True)})
        return self.known[space, alpha]

    def solve(self, problem: Problem, step: Sequence[str]) -> list[Coupling]:
        """The cheapest couplings of the spaces of one step of a problem; those without a cost go by the others."""
        if step[0] in problem.blocks:
            return problem.solve(step, [self.costs.get(s, np.zeros(problem.widths[s])) for s in step])
        return [self.couple(s, problem.matched_alpha(s)) for s in step]


def separate(problem: Problem, fixed: FixedCosts) -> Alignment:
    """Couple every space by its own fixed cost; spaces without one, and bundles without any, are left out."""
    found = {s: c for s, c in problem.identity().items() if s not in problem.alphas}
    costs = {}
    steps = [step for step in problem.steps() if any(space in fixed.costs for space in step)]
    shared = problem.tasks.share(fixed), problem.tasks.share(problem)
    calls = [(*shared, step) for step in steps]
    results = problem.tasks.run(FixedCosts.solve, calls, short=problem.is_short(steps))
    for step, solved in zip(steps, results, strict=True):
        for space, coupling in zip(step, solved, strict=True):
            found[space] = coupling
            cost = fixed.costs.get(space)
            costs[space] = 0.0 if cost is None else matched_cost(cost, coupling)
    return Alignment(found, costs)
