"""Counting the floating-point operations of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def counting(model: nn.Module) -> Iterator[FlopCounterMode]:
    """Count the operations of calls of this model, for each of its modules."""
    missing: dict[Any, Any] = {torch.ops.aten._trilinear: _trilinear}
    with _step_by_step(model), FlopCounterMode(display=False, depth=99, custom_mapping=missing) as counter:
        yield counter


def _trilinear(
    x: Sequence[int],
    weight: Sequence[int],
    y: Sequence[int],
    expand_x: Sequence[int],
    expand_weight: Sequence[int],
    expand_y: Sequence[int],
    *_: object,
    **__: object,
) -> int:
    """What `nn.Bilinear` computes, from the shapes of its inputs and the axes that each of them lacks."""
    shapes = []
    for shape, lacking in ((x, expand_x), (weight, expand_weight), (y, expand_y)):
        expanded = list(shape)
        for axis in sorted(lacking):
            expanded.insert(axis, 1)
        shapes.append(expanded)
    return 2 * math.prod(torch.broadcast_shapes(*shapes))


@contextmanager
def _step_by_step(model: nn.Module) -> Iterator[None]:
    """Recurrent layers run step by step: those of oneDNN are one operation, which PyTorch counts as nothing.

    The switch is one of the whole process, so it is used only for models that have such a layer.
    """
    onednn: Any = torch.backends.mkldnn  # its types describe the class of the switch, not its values
    before = onednn.enabled
    if not before or not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        yield
        return
    onednn.enabled = False  # `flags` would set its other switches, too, and PyTorch warns of one of them
    try:
        yield
    finally:
        onednn.enabled = before
