"""From a budget to a size for every space, and back to whether a plan keeps within it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...errors import OptionError
from ...kernels import Plan
from ..align import Aligner
from ..options import Recipe
from ..pruning import UnionPruner
from ..sources import Sources
from .allocate import allocate
from .budget import Budget
from .latency import OneByOne, Stopwatch, predicted_latency
from .paths import Path, Spaces, coupling_paths, pruning_paths, support_of
from .sizes import Sizes, Structure


@dataclass(frozen=True)
class Allocator:
    """Finds the size of every space within a budget.

    Attributes:
        paths: what every space loses at every size.
        structure: counts results.
        limits: the bounds.
        target: the bounds that sizes are found for; tighter, where plans turn out larger than predicted.
        stopwatch: measures the latency of results, where that is bounded.
        ensemble: the latency of the models one by one, which no result may exceed where latency is bounded.
        fast, slow: the largest predicted latency of a plan that held, and the smallest of one that did not.
    """

    paths: dict[Spaces, Path]
    structure: Structure
    limits: Sizes
    target: Sizes
    stopwatch: Stopwatch | None = None
    ensemble: float = math.inf
    fast: float = 0.0
    slow: float = math.inf

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with a size for every elastic space: alpha, or for one model what is kept."""
        found = allocate(self.paths, self.structure, self.target)
        return replace(recipe, keep=found) if recipe.keep is not None else replace(recipe, alpha=found)

    def size(self, plan: Plan) -> Sizes:
        found = {space: plan[space] for group in self.paths for space in group}
        supports = {s: support_of(r.support(), dense=bool(r.dense_readers)) for s, r in found.items()}
        return self.structure.sizes(supports)

    def operations(self, plan: Plan) -> float:
        """The operations of one call, relative to the last model."""
        return self.size(plan).flops / max(self.structure.sizes({}).flops, 1.0)

    def holds(self, plan: Plan) -> bool:
        """Whether a plan keeps within the budget, but for its latency, which is measured."""
        return replace(self.size(plan), latency=0.0).fits(self.limits)

    def tighter(self, plan: Plan) -> Allocator:
        """Aim lower by as much as a plan came out too large; latency has a measured aim of its own."""
        excess = replace(self.size(plan), latency=0.0).used(self.limits)
        return replace(self, target=replace(self.target.over(excess), latency=self.target.latency))

    def measured(self, plan: Plan, latency: float) -> Allocator:
        """Aim where a plan of this latency shows that the bound is, between those that held and those that did not."""
        predicted, holds = self.size(plan).latency, latency <= self.limits.latency
        fast, slow = (max(self.fast, predicted), self.slow) if holds else (self.fast, min(self.slow, predicted))
        aim = self.limits.latency * predicted / latency
        if not fast < aim < slow:
            aim = (fast + slow) / 2
        return replace(self, target=replace(self.target, latency=aim), fast=fast, slow=slow)


def allocator(
    sources: Sources, aligner: Aligner, pruner: UnionPruner | None, recipe: Recipe, budget: Budget
) -> Allocator:
    """What is needed to spend a budget.

    Args:
        sources: the models.
        aligner: says how they correspond.
        pruner: reduces their union, for methods of generalised pruning.
        recipe: everything but the size.
        budget: the bounds.
    """
    if not recipe.partial:
        raise OptionError(
            f"method={recipe.method!r} fuses every channel: a budget is for methods that can leave some apart"
        )
    paths = coupling_paths(sources, aligner, recipe) if pruner is None else pruning_paths(pruner, recipe)
    structure = Structure(sources.models[-1], sources.blueprint, sources.inputs, len(sources.models))
    limits = budget.limits(replace(structure.sizes({}), latency=1.0))
    stopwatch, ensemble = None, math.inf
    if budget.latency is not None:
        stopwatch = Stopwatch(sources.models[-1], sources.inputs)
        if len(sources.models) > 1:
            ensemble = stopwatch.ratio(OneByOne(sources.models))
            limits = replace(limits, latency=min(limits.latency, ensemble))
        structure.latency = predicted_latency(sources, list(paths.values()), structure, stopwatch)
    return Allocator(paths, structure, limits, limits, stopwatch, ensemble)
