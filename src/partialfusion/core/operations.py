"""Counting the floating-point operations of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def counting(model: nn.Module) -> Iterator[FlopCounterMode]:
    """Count the operations of calls of this model, for each of its modules."""
    with _step_by_step(model), FlopCounterMode(display=False, depth=99) as counter:
        yield counter


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
