"""By how much a result in which everything is kept apart misses the ensemble, and why."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import nn

from ..blueprint import Blueprint
from ..core.inputs import Inputs, run
from ..core.literals import Mix
from ..core.modules import named_tensors
from ..core.text import shorten
from ..errors import VerificationError
from ..surgery.verify import close, deviation

log = logging.getLogger(__name__)


def shortfall_of(result: nn.Module, models: Sequence[nn.Module], blueprint: Blueprint, inputs: Inputs, mix: Mix) -> str:
    """What the result misses of the mix of the models' outputs, and why; an empty text where it misses nothing.

    Args:
        result: the fused model, with every channel kept apart.
        models: the sources.
        blueprint: of the last of them.
        inputs: example inputs.
        mix: the share of each model.
    """
    if any(t.is_meta for t in named_tensors(result).values()):
        return ""
    outputs = [run(m, inputs) for m in models]
    gap = 0.0
    for found, *parts in zip(run(result, inputs), *outputs, strict=True):
        expected = torch.stack([w * o.to(found.device) for w, o in zip(mix, parts, strict=True)]).sum(0)
        if found.is_floating_point() and not close([found], [expected]):
            gap = max(gap, deviation(found, expected))
    if not gap:
        return ""
    why = [f"only averaged: {shorten(blueprint.averaged)}"] if blueprint.averaged else []
    if blueprint.nonlinear_after:
        why.append(f"the models are mixed before {', '.join(blueprint.nonlinear_after)}")
    if not why:
        raise VerificationError(
            "the result at alpha=1 is not the mix of the models' outputs; please report the network that shows this"
        )
    missed = "the ensemble" if len(models) > 1 else "the model"
    text = f"with everything kept apart, the result is not {missed}: its outputs differ by {gap:.1g} of the largest"
    log.warning("%s (%s)", text, "; ".join(why))
    return f"{text} ({'; '.join(why)})"
