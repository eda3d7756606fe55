"""Aligning models: every one but the last, with the last."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...core.arrays import Floats, Ints
from ...core.cluster import Here, Tasks
from ...core.progress import ProgressCallback, silent
from ...features import Need, TracedModel, UnionFeatures, WeightCosts
from ...kernels import Coupling, PlanTemplate
from ...solvers import MassPair, couple, fused_count
from ..options import Recipe
from ..sources import Sources
from .alignment import Alignment, CostsAt, Problem, Report, unheard
from .fixed_point import fixed_point, refine
from .greedy import greedy
from .separate import FixedCosts, separate

LIGHTEST = 1e-3  # of the mean mass of a channel: one that computes nothing still has to go somewhere


class Aligner:
    """Aligns the models of a fusion; what does not depend on alpha is computed once for all alphas.

    Args:
        sources: the models.
        recipe: method, features, site, align and convention; its alpha and mix play no part.
    """

    def __init__(self, sources: Sources, recipe: Recipe) -> None:
        self.sources, self.recipe = sources, recipe
        self.free = sources.names("elastic", "permutable")
        self._aligned: dict[tuple[float, ...], list[Alignment]] = {}
        self.progress: ProgressCallback = silent

    def align(self, alphas: Mapping[str, float]) -> list[Alignment]:
        """One alignment for each model but the last; elastic space → isolated fraction."""
        free = {space: alphas.get(space, 0.0) for space in self.free}
        if self.recipe.method == "average" or all(a == 1.0 for a in free.values()):
            return [Alignment(_in_order(widths)) for widths in self._widths]
        key = tuple(free.values())
        if key not in self._aligned:
            reports = [self._report(k) for k in range(len(self._pairs))]
            self._aligned[key] = [pair.align(free, report) for pair, report in zip(self._pairs, reports, strict=True)]
        return self._aligned[key]

    def _report(self, k: int) -> Report:
        """Progress of the alignment of one of the models with the last."""
        return lambda done: self.progress("matching channels", (k + done) / len(self._pairs))

    def template(self, alphas: Mapping[str, float]) -> PlanTemplate:
        """What is coupled with what; elastic space → isolated fraction."""
        alignments = self.align(alphas)
        couplings = {}
        for space in self.sources.widths:
            found = [a.couplings[space] for a in alignments]
            couplings[space] = [c.isolated() for c in found] if alphas.get(space) == 1.0 else found
        return PlanTemplate(
            self.sources.widths,
            couplings,
            {},
            self.recipe.mix,
            self.recipe.convention,
            {s: sum(a.costs.get(s, 0.0) for a in alignments) for s in couplings},
            max(a.sweeps for a in alignments),
            all(a.converged for a in alignments),
        )

    def full_costs(self, spaces: Sequence[str]) -> list[Mapping[str, Floats]]:
        """For each model but the last: space → (n × m) cost of fusing its channels, when everything else is fused.

        Most are computed when they are asked for: all of them together may need more memory than the models.
        """
        return [pair.full_costs(self.free, spaces, self._report(k)) for k, pair in enumerate(self._pairs)]

    def costs(self, template: PlanTemplate) -> list[dict[str, Floats]]:
        """For each model but the last: space → (n × m) cost of fusing its channels, the other spaces as coupled."""
        return [
            pair.costs_at({s: couplings[k] for s, couplings in template.couplings.items()}, self.free)
            for k, pair in enumerate(self._pairs)
        ]

    def correlations(self) -> dict[str, Floats]:
        """Free space → (n × m) correlations of the first model's channels with the last one's; zeros where channels are
        compared by weights alone, or none were seen."""
        known: Mapping[str, Floats] = {}
        if self.recipe.features != "weights":
            known = self.sources.activations(self._need).costs(self.recipe.site, 0)
        widths = self._widths[0]
        return {s: 1.0 - known[s] if s in known else np.zeros(widths[s]) for s in self.free}

    def unseen(self) -> list[str]:
        """Spaces that are to be matched by activations, of which the data shows none."""
        if self.recipe.features == "weights" or self.recipe.method == "average":
            return []
        seen = self.sources.activations(self._need).seen(self.recipe.site)
        return [space for space in self.free if space not in seen]

    @property
    def _need(self) -> Need:
        return Need(self.recipe.site)

    @cached_property
    def _widths(self) -> list[dict[str, tuple[int, int]]]:
        last = len(self.sources.models) - 1
        return [{s: (w[k], w[-1]) for s, w in self.sources.widths.items()} for k in range(last)]

    @cached_property
    def _pairs(self) -> list[PairAligner]:
        self.sources.require_numbers()
        *others, last = self.sources.traced
        return [
            PairAligner(
                source,
                last,
                widths,
                self._measured(k),
                self.recipe,
                self._announced,
                self._paired(k),
                self.sources.tasks,
            )
            for k, (source, widths) in enumerate(zip(others, self._widths, strict=True))
        ]

    @property
    def _announced(self) -> dict[str, tuple[float, ...]]:
        """Space → the isolated fractions that it will be aligned at, as far as they are known."""
        grids = self.sources.grids(self.recipe.round_to)
        found = {s: {grids[s].alpha(alpha) for alpha in self.sources.alphas} for s in self.free}
        return {s: tuple(sorted({0.0 if alpha == 1.0 else alpha for alpha in alphas})) for s, alphas in found.items()}

    def _measured(self, k: int) -> dict[str, Floats]:
        if self.recipe.features == "weights":
            return {}
        squared = self.recipe.features == "distances"
        return self.sources.activations(self._need).costs(self.recipe.site, k, squared=squared) | self._paired(k)

    def _paired(self, k: int) -> dict[str, Floats]:
        return {space: costs[k] for space, costs in self.sources.paired.items()}


def _in_order(widths: Mapping[str, tuple[int, int]]) -> dict[str, Coupling]:
    """Channel i with channel i; where widths differ, nothing is fused."""
    return {
        s: Coupling.identity(n) if n == m else couple(np.zeros((n, m)), 0.0).isolated() for s, (n, m) in widths.items()
    }


@dataclass(frozen=True, eq=False)
class PairAligner:
    """A model and the last one, with the costs measured between them.

    Attributes:
        ours, theirs: the model and the last one.
        widths: space → channels of both.
        measured: space → (n × m) cost by activations, for the spaces that were seen.
        recipe: features, method, align and convention.
        alphas: space → isolated fractions that it will be aligned at, as far as they are known.
        paired: space of which it is known what corresponds → (n × m) cost, the only one that counts there.
        tasks: where spaces that do not depend on each other are solved.
    """

    ours: TracedModel
    theirs: TracedModel
    widths: Mapping[str, tuple[int, int]]
    measured: Mapping[str, Floats]
    recipe: Recipe
    alphas: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    paired: Mapping[str, Floats] = field(default_factory=dict)
    tasks: Tasks = field(default_factory=Here)

    def align(self, free: Mapping[str, float], report: Report = unheard) -> Alignment:
        """Align the free spaces, space → isolated fraction."""
        if self.recipe.by_activations:
            return self._by_activations(free, report)
        problem = self._problem(free)
        if self.recipe.align == "greedy":
            return greedy(problem, report=report)
        if not problem.is_partial():
            return self._full(tuple(free), report)[0]
        sizes = {s: sorted({problem.matched_alpha(s), *self.alphas.get(s, ())}) for s in free}
        full, costs = self._full(tuple(free), lambda done: report(0.5 * done), sizes)
        return refine(problem, full, costs, report=lambda done: report(0.5 + 0.5 * done))

    def full_costs(self, free: Sequence[str], spaces: Sequence[str], report: Report = unheard) -> Mapping[str, Floats]:
        """Cost matrices of some spaces at the alignment of all free ones with nothing isolated."""
        if self.recipe.by_activations and all(s in self.measured for s in spaces):
            return {s: self.measured[s] for s in spaces}
        if not self.recipe.by_activations and self.recipe.align != "greedy":
            return self._full(tuple(free), report)[1].costs
        nothing = dict.fromkeys(free, 0.0)
        return {s: cost for s, cost in self.costs_at(self.align(nothing).couplings, free).items() if s in spaces}

    def costs_at(self, couplings: Mapping[str, Coupling], free: Sequence[str]) -> dict[str, Floats]:
        """Cost matrices of the free spaces, the others as coupled; spaces wholly isolated count as matched."""
        alphas = {s: 1.0 - float((couplings[s].fused_fraction()[1] > 0).mean()) for s in free}
        matched = {s: c if c.fused.any() else c.whole() for s, c in couplings.items()}
        if self.recipe.by_activations and all(s in self.measured for s in free):
            return {s: self.measured[s] for s in free}
        problem = self._problem(alphas)
        if not self.recipe.by_activations:
            return {s: problem.cost(s, matched) for s in free}
        return {s: self.measured[s] if s in self.measured else problem.cost(s, matched) for s in free}

    def _full(
        self, free: tuple[str, ...], report: Report, sizes: Mapping[str, Sequence[float]] | None = None
    ) -> tuple[Alignment, FixedCosts]:
        """The alignment with nothing isolated, which every other one starts from, and what each space costs there.

        Args:
            free: the spaces.
            report: called with the fraction that is done.
            sizes: space → isolated fractions that the next alignment starts from.
        """
        if free not in self._known:
            problem = replace(self._problem(dict.fromkeys(free, 0.0)), ahead=sizes or {})
            found = fixed_point(problem, report=report)
            at_end = CostsAt(problem, found.couplings)
            costs = FixedCosts(at_end, self.alphas, problem.split, problem.masses, dict(found.ahead))
            self._known[free] = found, costs
        return self._known[free]

    @cached_property
    def _known(self) -> dict[tuple[str, ...], tuple[Alignment, FixedCosts]]:
        return {}

    @cached_property
    def _by_measure(self) -> FixedCosts:
        return FixedCosts(self.measured, self.alphas, self.recipe.convention == "mass", self._masses)

    def _by_activations(self, free: Mapping[str, float], report: Report) -> Alignment:
        """Spaces whose activations are not seen are aligned by their weights, given the others."""
        found = separate(self._outline(free), self._by_measure)
        unseen = {s: a for s, a in free.items() if s not in found.costs}
        if not unseen:
            return found
        rest = replace(self._problem(free), alphas=unseen, fixed_costs={})
        aligned = fixed_point(rest, known=found.couplings, report=report)
        return replace(aligned, costs={**found.costs, **aligned.costs})

    def _outline(self, alphas: Mapping[str, float]) -> Problem:
        """The problem without any costs."""
        blueprint = self.theirs.blueprint
        return Problem(
            None,
            {},
            alphas,
            self.widths,
            split=self.recipe.convention == "mass",
            masses=self._masses,
            blocks=self._blocks(alphas),
            bundles=blueprint.bundles(alphas),
            paired=self.paired,
            tasks=self.tasks,
        )

    @cached_property
    def _masses(self) -> dict[str, MassPair]:
        """Space → masses of the channels of both models, where the recipe wants other than equal ones.

        Channels that stand in blocks are left out: there the blocks are matched, which count the same.
        """
        if self.recipe.masses == "equal":
            return {}
        both = UnionFeatures((self.ours, self.theirs), ({}, {}), {}, "weights")
        found = {}
        for space in self.theirs.blueprint:
            if space.kind != "rigid" and space.blocks is None:
                norms = both.norms(space.name, outgoing=self.recipe.masses == "outgoing")
                norms = np.maximum(norms, LIGHTEST * norms.mean())
                n = self.widths[space.name][0]
                found[space.name] = norms[:n] / norms[:n].sum(), norms[n:] / norms[n:].sum()
        return found

    def _blocks(self, spaces: Container[str]) -> dict[str, tuple[Ints, Ints]]:
        """Space → the block of each channel of both models, for spaces that stand in blocks."""
        pairs = ((self.ours.blueprint[s.name].blocks, s) for s in self.theirs.blueprint if s.name in spaces)
        return {s.name: (ours, s.blocks) for ours, s in pairs if ours is not None and s.blocks is not None}

    def _problem(self, alphas: Mapping[str, float]) -> Problem:
        """The problem on weights, with the measured costs on the same scale."""
        problem = self._outline(alphas)
        fraction = dict.fromkeys(self.widths, 1.0)
        for s in alphas:
            m = self.widths[s][1]
            fraction[s] = max(fused_count(m, problem.matched_alpha(s)), 1) / m
        scaled = {s: c / (self.widths[s][1] * fraction[s]) for s, c in self.measured.items()}
        return replace(problem, weights=self._weights.at(fraction), fixed_costs=scaled)

    @cached_property
    def _weights(self) -> WeightCosts:
        rebasin = self.recipe.method == "permutation"
        return WeightCosts(
            self.ours,
            self.theirs,
            dict.fromkeys(self.widths, 1.0),
            convention=self.recipe.convention,
            normalise=not rebasin,
            vectors=rebasin,
        )
