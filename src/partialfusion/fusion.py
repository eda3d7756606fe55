"""The result of a fusion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from .blueprint import Blueprint, Space
from .kernels import Plan
from .recipe import Recipe
from .surgery import Count
from .text import table


@dataclass(frozen=True)
class SpaceSummary:
    """One space of a result: its width before and after, and how it was matched."""

    name: str
    kind: str
    before: int
    after: int
    fused: int
    isolated: tuple[int, ...]
    cost: float


@dataclass(frozen=True, repr=False)
class Summary:
    """What became of every space, the parameters, and whether the matching converged. Prints as a table."""

    recipe: Recipe
    spaces: tuple[SpaceSummary, ...]
    count: Count
    sweeps: int
    converged: bool
    cost: float

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = [
            (s.name, s.kind, s.before, s.after, s.fused, " + ".join(map(str, s.isolated)), f"{s.cost:.4g}")
            for s in self.spaces
        ]
        header = ("space", "kind", "before", "after", "fused", "isolated", "cost")
        count, recipe = self.count, self.recipe
        state = "converged" if self.converged else "NOT converged"
        return "\n".join(
            [
                table(header, rows, align="<<>>>>>"),
                f"{recipe.method}, {recipe.features} features, {recipe.align}: {state} after {self.sweeps} sweeps, "
                f"cost {self.cost:.4g}",
                f"parameters: {count.effective:,} effective of {count.dense:,} dense, {count.ratio:.2f}× one model "
                f"({count.single:,})",
            ]
        )


@dataclass(frozen=True, repr=False)
class Fusion:
    """A fused model with the plan that made it.

    Attributes:
        model: an ordinary module of the last source's class.
        plan: space → reduction; see what was fused with what.
        blueprint: of the last source.
        layout: where the channels of every space sit in the result.
        recipe: the options.
        count: dense and effective parameters.
    """

    model: nn.Module
    plan: Plan
    blueprint: Blueprint
    layout: Mapping[str, Space]
    recipe: Recipe
    count: Count

    def __repr__(self) -> str:
        model, recipe = type(self.model).__name__, self.recipe
        size = f"{self.count.ratio:.2f}× one model"
        return f"Fusion({model}, {recipe.method}, alpha={recipe.alpha}, mix={recipe.mix}, {size})"

    def summary(self) -> Summary:
        """Channels fused and isolated per space, parameters, and convergence."""
        spaces = tuple(
            SpaceSummary(s.name, s.kind, s.width, (r := self.plan[s.name]).width, r.fused, r.isolated, r.cost)
            for s in self.blueprint
        )
        plan = self.plan
        return Summary(self.recipe, spaces, self.count, plan.sweeps, plan.converged, plan.cost)
