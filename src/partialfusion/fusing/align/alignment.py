"""The problem and the solution of aligning one model with the last one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.arrays import Floats, Ints
from ...core.cluster import Here, Tasks
from ...core.progress import Amount
from ...features import WeightCosts
from ...features.weights import Couplings
from ...kernels import Coupling
from ...solvers import MassPair, Prices, couple, couple_blocks

WIDE = 1024  # channels on average from which on spaces are matched faster in threads: narrow ones are slower there
SOLVING = 1000.0  # operations of a product that take as long as an assignment, for each pair of channels
Report = Callable[[float], None]  # the fraction of the work that is done


def unheard(done: float) -> None:
    """A report to nobody."""


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
        masses: space → masses of the channels of both models, where they are not equal.
        blocks: space → the block of each channel of both models, for spaces that stand in blocks.
        bundles: sets of spaces whose blocks go together.
        paired: space of which it is known what corresponds → (n × m) cost, the only one that counts there.
        prices: space → what its channels cost when it was last solved; the next solve begins there.
        tasks: where spaces that do not depend on each other are solved.
        ahead: space → other isolated fractions that it will be solved at with the costs that it has at the end.
    """

    weights: WeightCosts | None
    fixed_costs: Mapping[str, Floats]
    alphas: Mapping[str, float]
    widths: Mapping[str, tuple[int, int]]
    split: bool = False
    masses: Mapping[str, MassPair] = field(default_factory=dict)
    blocks: Mapping[str, tuple[Ints, Ints]] = field(default_factory=dict)
    bundles: Sequence[tuple[str, ...]] = ()
    paired: Mapping[str, Floats] = field(default_factory=dict)
    prices: dict[str, Prices] = field(default_factory=dict)
    tasks: Tasks = field(default_factory=Here)
    ahead: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def steps(self) -> list[tuple[str, ...]]:
        """The free spaces in the order of computation, those of a bundle together at the first of them."""
        bundled = {s: bundle for bundle in self.bundles for s in bundle}
        return list(dict.fromkeys(bundled.get(s, (s,)) for s in self.alphas))

    def cost(self, space: str, couplings: Couplings) -> Floats:
        """(n × m) cost of a space while all others stay as they are."""
        if space in self.paired:
            return self.paired[space]
        total = np.zeros(self.widths[space]) if self.weights is None else self.weights.cost(space, couplings)
        if space in self.fixed_costs:
            total += self.fixed_costs[space]
        return total

    def operations(self, space: str) -> float:
        """How many operations the products take that the cost of a space is made of."""
        return 0.0 if self.weights is None or space in self.paired else self.weights.operations(space)

    def is_kept(self, space: str, couplings: Couplings) -> bool:
        """Whether the cost of a space is known at once when it is asked for again."""
        return self.weights is None or space in self.paired or self.weights.is_kept(space, couplings)

    def solve(self, spaces: Sequence[str], costs: Sequence[Floats]) -> list[Coupling]:
        """The cheapest couplings of the spaces of one step."""
        if spaces[0] in self.blocks:
            blocks = [self.blocks[s] for s in spaces]
            return couple_blocks(costs, blocks, self.matched_alpha(spaces[0]), split=self.split)
        return [
            couple(
                c,
                self.matched_alpha(s),
                masses=self.masses.get(s),
                split=self.split,
                prices=self.prices.setdefault(s, Prices()),
            )
            for s, c in zip(spaces, costs, strict=True)
        ]

    def matched_alpha(self, space: str) -> float:
        alpha = self.alphas[space]
        return 0.0 if alpha == 1.0 else alpha

    def is_partial(self) -> bool:
        return any(self.matched_alpha(s) > 0 for s in self.alphas)

    def identity(self) -> dict[str, Coupling]:
        """Channel i with channel i in every space of equal width."""
        return {s: Coupling.identity(n) for s, (n, m) in self.widths.items() if n == m}

    def neighbours(self, step: Sequence[str]) -> set[str]:
        """Free spaces whose costs depend on the couplings of a step, which depends on theirs."""
        return self._beside(step) & set(self.alphas)

    def _beside(self, step: Sequence[str]) -> set[str]:
        if self.weights is None:
            return set()
        return {other for s in step for _, b in self.weights.bindings(s) for other in self.weights.others(b)}

    def waves(self) -> list[list[tuple[str, ...]]]:
        """The steps in groups that are solved one after the other.

        A step comes after those of its neighbours that stand before it in the order of computation, and before the
        others. Steps of one group do not depend on each other, and the result is that of all steps in their order.
        """
        level: dict[str, int] = {}
        waves: list[list[tuple[str, ...]]] = []
        for step in self.steps():
            own = max((level[s] + 1 for s in self.neighbours(step) if s in level), default=0)
            level.update(dict.fromkeys(step, own))
            waves.extend([] for _ in range(own + 1 - len(waves)))
            waves[own].append(step)
        return waves

    def is_short(self, steps: Sequence[tuple[str, ...]]) -> bool:
        """Whether steps that do not depend on each other are solved before threads would pay."""
        work = sum(math.prod(self.widths[s]) for step in steps for s in step)
        return work < WIDE**2 * len(steps)

    def solved(
        self, function: Callable[..., Solved], steps: Sequence[tuple[str, ...]], couplings: Couplings, shared: Any
    ) -> Iterator[tuple[tuple[str, ...], Solved]]:
        """Steps that do not depend on each other, each with its solution.

        Args:
            function: a function of the problem, a step and the couplings next to it.
            steps: the steps.
            couplings: all couplings that are known.
            shared: the problem, as `tasks` shares it.
        """
        calls = []
        for step in steps:
            beside = self._beside(step)
            own = bool(beside & set(step))  # then the whole objective counts
            seen = {s: c for s, c in couplings.items() if own or s in beside or s in step}
            calls.append((function, shared, step, seen, {s: self.prices[s] for s in step if s in self.prices}))
        results = self.tasks.run(_task, calls, short=self.is_short(steps))
        for step, (found, prices) in zip(steps, results, strict=True):
            self.prices.update(prices)
            yield step, found


Ahead = Mapping[tuple[str, float], Coupling]  # space and isolated fraction → its cheapest coupling


@dataclass(frozen=True)
class Alignment:
    """Couplings of all spaces and how they were found.

    Attributes:
        couplings: space → its coupling.
        costs: space → what it costs.
        sweeps: how many there were.
        converged: whether hardly anything could be gained any more.
        ahead: couplings of other sizes with the costs that spaces have here, as far as they were solved already.
    """

    couplings: Mapping[str, Coupling]
    costs: Mapping[str, float] = field(default_factory=dict)
    sweeps: int = 1
    converged: bool = True
    ahead: Ahead = field(default_factory=dict)


@dataclass(frozen=True)
class Solved:
    """The solution of one step.

    Attributes:
        couplings: space → its cheapest coupling.
        costs: space → what it costs.
        gain: what that saves against the couplings before.
        random: what a random matching costs, on average.
        ahead: couplings of other sizes with the same costs.
    """

    couplings: Mapping[str, Coupling]
    costs: Mapping[str, float]
    gain: float = 0.0
    random: float = 0.0
    ahead: Ahead = field(default_factory=dict)


def _task(
    function: Callable[..., Solved],
    problem: Problem,
    step: tuple[str, ...],
    couplings: Couplings,
    prices: Mapping[str, Prices],
) -> tuple[Solved, dict[str, Prices]]:
    """The solution of a step, in whichever process, and the prices that it leaves."""
    problem.prices.update(prices)
    found = function(problem, step, couplings)
    return found, {s: problem.prices[s] for s in step if s in problem.prices}


class Work(Amount):
    """How much of the work of one sweep over the free spaces is done.

    A space counts by the operations of the products that its cost is made of, which are heard of one by one, and those
    of its assignment.

    Args:
        problem: the problem.
        report: called with the fraction that is done.
        products: step → operations of its products; without it, those of its whole cost.
    """

    def __init__(
        self, problem: Problem, report: Report, products: Mapping[tuple[str, ...], float] | None = None
    ) -> None:
        found = {step: sum(map(problem.operations, step)) for step in problem.steps()} if products is None else products
        self._of = {step: n + SOLVING * sum(math.prod(problem.widths[s]) for s in step) for step, n in found.items()}
        super().__init__(sum(self._of.values()), report)

    def after(self, *steps: tuple[str, ...]) -> None:
        """These are done, or there is nothing to be done for them."""
        self.end(sum(self._of[step] for step in steps))


@dataclass(frozen=True, eq=False)
class CostsAt(Mapping[str, Floats]):
    """Free space → its (n × m) cost, the others as coupled; computed when it is asked for, and not kept."""

    problem: Problem
    couplings: Couplings

    def __getitem__(self, space: str) -> Floats:
        return self.problem.cost(space, self.couplings)

    def __iter__(self) -> Iterator[str]:
        return iter(self.problem.alphas)

    def __len__(self) -> int:
        return len(self.problem.alphas)


def matched_cost(cost: Floats, coupling: Coupling) -> float:
    """Cost of the fused entries, a whole channel counting one."""
    rows, cols, mass = coupling.fused_part()
    return float((cost[rows, cols] * mass).sum() * len(coupling.row_mass))
