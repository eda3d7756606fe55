"""From a budget to the share of every space, and back to whether a plan keeps to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ...blueprint import Blueprint
from ...errors import OptionError
from ...kernels import Plan
from ..options import Recipe
from ..validation import conformed
from .allocate import allocate
from .budget import Budget
from .paths import Path, coupling_paths, pruning_paths, support_of
from .sizes import Sizes, Structure


@dataclass(frozen=True)
class Spender:
    """Finds shares that fit a budget.

    Attributes:
        paths: what every space loses at every size.
        structure: counts results.
        limits: the bounds.
        target: the bounds that shares are found for; tighter, where plans turn out larger than foretold.
    """

    paths: dict[str, Path]
    structure: Structure
    limits: Sizes
    target: Sizes

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with a share for every elastic space."""
        shares = allocate(self.paths, self.structure, self.target)
        return replace(recipe, keep=shares) if recipe.keep is not None else replace(recipe, alpha=shares)

    def size(self, plan: Plan) -> Sizes:
        return self.structure.sizes({space: support_of(plan[space].support()) for space in self.paths})

    def holds(self, plan: Plan) -> bool:
        """Whether a plan keeps to the budget."""
        return self.size(plan).fits(self.limits)

    def tighter(self, plan: Plan) -> Spender:
        """Aim lower by as much as a plan came out too large."""
        excess = self.size(plan).used(self.limits)
        target = Sizes(*(value / excess for value in (self.target.params, self.target.flops, self.target.channels)))
        return replace(self, target=target)


def spender(
    models: Sequence[nn.Module],
    blueprint: Blueprint,
    inputs: tuple[Any, ...],
    batches: Iterable[tuple[Any, ...]] | None,
    recipe: Recipe,
    budget: Budget,
) -> Spender:
    """What is needed to spend a budget.

    Args:
        models: the models.
        blueprint: of the last one.
        inputs: example inputs, with which operations are counted.
        batches: data for activations.
        recipe: everything but the size.
        budget: the bounds.
    """
    if not recipe.partial:
        raise OptionError(
            f"method={recipe.method!r} fuses every channel: a budget is for methods that can leave some apart"
        )
    blueprints = conformed(models, blueprint, inputs, equal=recipe.needs_equal_widths)
    if recipe.pruning is None:
        paths = coupling_paths(models, blueprints, batches, recipe)
    else:
        paths = pruning_paths(models, blueprints, batches, recipe, recipe.pruning)
    structure = Structure(models[-1], blueprint, inputs, len(models))
    limits = budget.limits(Structure(models[-1], blueprint, inputs, 1).sizes({}))
    return Spender(paths, structure, limits, limits)
