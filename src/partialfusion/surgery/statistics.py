"""How the norms of a result, and channels without a norm, get the statistics they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from ..blueprint import Blueprint
from ..core.inputs import Inputs
from ..core.progress import ProgressCallback
from .apply import SurgeryResult
from .norm import analytic, recalibrate
from .repair import repair, repair_by_weights


def set_statistics(
    result: SurgeryResult,
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    rule: str,
    batches: Iterable[Inputs] | None,
    progress: ProgressCallback,
) -> tuple[str, ...]:
    """Set the statistics of norms, and repair the spread of channels that no norm follows.

    Args:
        result: the fused model, which is written in place, and its plan.
        models: the sources.
        blueprints: their blueprints.
        rule: "recalibrate" or "analytic" for norms alone; "repair" for both, with data where there is some.
        batches: inputs.
        progress: called with what is being done.

    Returns:
        The parameters whose channels were to be repaired and could not be.
    """
    if batches is None or rule == "analytic":
        analytic(result, models, blueprints)
        if rule == "repair":
            return repair_by_weights(result, models, blueprints)
        return ()
    _recalibrate(result, blueprints[-1], batches, progress)
    if rule == "repair":
        progress("repairing", 1.0)
        left = repair(result, models, blueprints, batches)
        _recalibrate(result, blueprints[-1], batches, progress)
        return left
    return ()


def _recalibrate(
    result: SurgeryResult, blueprint: Blueprint, batches: Iterable[Inputs], progress: ProgressCallback
) -> None:
    if blueprint.norms:
        progress("measuring norm statistics", 1.0)
        recalibrate(result.model, blueprint, batches)
