"""Refitting a result."""

from __future__ import annotations

from torch import nn

from ..core.batches import Batches
from ..core.progress import ProgressCallback
from ..surgery import refit_model
from .options import Recipe
from .result import Fusion


def refit_result(
    result: Fusion, model: nn.Module, batches: Batches, recipe: Recipe, progress: ProgressCallback
) -> tuple[str, ...]:
    """Fit a model, of the result's shapes and numbers, in place, as the recipe says; which weights could not be."""

    def report(layer: str, done: int, total: int) -> None:
        progress(f"refitting {layer}", done / total)

    progress("refitting", 0.0)
    return refit_model(
        model,
        result.layout,
        result.equivalents,
        result.blueprints,
        result.plan,
        batches,
        ridge=recipe.refit,
        zeros=recipe.zeros,
        on_progress=report,
    )
