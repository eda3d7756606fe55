"""Sizes and a matching within a budget: what can be counted is foretold, what takes time is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from ..core.progress import ProgressCallback
from ..kernels import Plan, PlanTemplate
from .budget import Allocator, Budget, BudgetError
from .options import Recipe
from .result import Latency
from .shortfall import check_speed

ATTEMPTS = 5  # results that are timed for a bound on latency
NEAR = 0.95  # of the bound: near enough


@dataclass(frozen=True)
class Sized:
    """What is matched with what at the sizes of a recipe; with a budget the operations of the result, relative to the
    last model, and its latency where that is bounded."""

    recipe: Recipe
    sizes: dict[str, float]
    template: PlanTemplate
    latency: Latency | None = None
    operations: float | None = None


def within(
    budget: Budget,
    found: Allocator,
    recipe: Recipe,
    matched: Callable[[Recipe], Sized],
    made: Callable[[Plan], nn.Module],
    progress: ProgressCallback,
    *,
    allow_slower: bool,
) -> Sized:
    """Sizes and a matching within a budget. Latency is measured, and the aim corrected until the bound is met.

    Args:
        budget: bounds on the result.
        found: the sizes that should meet them.
        recipe: all other options.
        matched: a recipe with sizes → what is matched with what.
        made: a plan → the model that is timed.
        progress: called with what is being done and the fraction that is done.
        allow_slower: return a result that takes longer than the models one by one, where no faster one was found.
    """
    sized, found = _counted(found, recipe, matched)
    if found.stopwatch is None or budget.latency is None:
        return sized
    tried: list[tuple[Latency, Sized]] = []
    while len(tried) < ATTEMPTS and all(sized.sizes != earlier.sizes for _, earlier in tried):
        progress("measuring the latency", len(tried) / ATTEMPTS)
        plan = sized.template.plan(recipe.mix)
        latency = Latency(found.stopwatch.ratio(made(plan)), budget.latency, found.ensemble)
        tried.append((latency, replace(sized, latency=latency)))
        if latency.holds and latency.ratio >= NEAR * latency.limit:
            break
        found = found.measured(plan, latency.ratio)
        try:
            sized, found = _counted(found, recipe, matched)
        except BudgetError:  # the smallest result is too slow
            break
    latency, best = min(tried, key=lambda attempt: attempt[0].rank)
    if not latency.holds:
        check_speed(str(latency), slower=latency.ratio > latency.ensemble, allowed=allow_slower)
    return best


def _counted(found: Allocator, recipe: Recipe, matched: Callable[[Recipe], Sized]) -> tuple[Sized, Allocator]:
    """Sizes and a matching within all that can be counted: aim lower while a plan is larger than predicted."""
    while True:
        sized = matched(found.recipe(recipe))
        plan = sized.template.plan(recipe.mix)
        if found.holds(plan):
            return replace(sized, operations=found.operations(plan)), found
        found = found.tighter(plan)
