"""The problem and the solution of aligning one model with the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.arrays import Floats, Ints
from ...features import WeightCosts
from ...features.weights import Couplings
from ...kernels import Coupling
from ...solvers import couple, couple_blocks


@dataclass(frozen=True)
class Problem:
    """What is to be aligned.

    Attributes:
        weights: the objective on weights, or nothing when activations alone decide.
        fixed_costs: space → cost that does not depend on other spaces, already on the scale of the objective.
        alphas: free space → isolated fraction, in the order of computation. A space that is wholly isolated is
            matched like one that is wholly fused, since its neighbours need to know what corresponds.
        widths: space → channels of both models, for every space.
        split: leave channels of unequal widths fused in part.
        blocks: space → the block of each channel of both models, for spaces that stand in blocks.
        bundles: sets of spaces whose blocks go together.
        paired: space of which it is known what corresponds → (n × m) cost, the only one that counts there.
    """

    weights: WeightCosts | None
    fixed_costs: Mapping[str, Floats]
    alphas: Mapping[str, float]
    widths: Mapping[str, tuple[int, int]]
    split: bool = False
    blocks: Mapping[str, tuple[Ints, Ints]] = field(default_factory=dict)
    bundles: Sequence[tuple[str, ...]] = ()
    paired: Mapping[str, Floats] = field(default_factory=dict)

    def steps(self) -> list[tuple[str, ...]]:
        """The free spaces in the order of computation, those of a bundle together at the first of them."""
        bundled = {s: bundle for bundle in self.bundles for s in bundle}
        return list(dict.fromkeys(bundled.get(s, (s,)) for s in self.alphas))

    def cost(self, space: str, couplings: Couplings) -> Floats:
        """(n × m) cost of a space while all others stay as they are."""
        if space in self.paired:
            return self.paired[space]
        total = np.zeros(self.widths[space])
        if self.weights is not None:
            total += self.weights.cost(space, couplings)
        if space in self.fixed_costs:
            total += self.fixed_costs[space]
        return total

    def solve(self, spaces: Sequence[str], costs: Sequence[Floats]) -> list[Coupling]:
        """The cheapest couplings of the spaces of one step."""
        if spaces[0] in self.blocks:
            blocks = [self.blocks[s] for s in spaces]
            return couple_blocks(costs, blocks, self.matched_alpha(spaces[0]), split=self.split)
        return [couple(c, self.matched_alpha(s), split=self.split) for s, c in zip(spaces, costs, strict=True)]

    def matched_alpha(self, space: str) -> float:
        alpha = self.alphas[space]
        return 0.0 if alpha == 1.0 else alpha

    def is_partial(self) -> bool:
        return any(self.matched_alpha(s) > 0 for s in self.alphas)

    def identity(self) -> dict[str, Coupling]:
        """Channel i with channel i in every space of equal width."""
        return {s: Coupling.identity(n) for s, (n, m) in self.widths.items() if n == m}


@dataclass(frozen=True)
class Alignment:
    """Couplings of all spaces and how they were found."""

    couplings: Mapping[str, Coupling]
    costs: Mapping[str, float] = field(default_factory=dict)
    sweeps: int = 1
    converged: bool = True


def matched_cost(cost: Floats, coupling: Coupling) -> float:
    """Cost of the fused entries, a whole channel counting one."""
    rows, cols, mass = coupling.fused_part()
    return float((cost[rows, cols] * mass).sum() * len(coupling.row_mass))
