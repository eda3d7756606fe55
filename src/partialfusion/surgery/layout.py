"""The memory layout of convolutions."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from ..core.inputs import Inputs, run
from ..core.modules import first_line, named_tensors, sharing_tensors
from .verify import close

log = logging.getLogger(__name__)

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # axes of a weight → its layout


def in_channels_last(model: nn.Module, inputs: Inputs) -> nn.Module:
    """A copy of a model whose convolutions keep the channels of a position side by side.

    Many CPUs compute them faster so, and a range of channels is cheap to take out and to put together. What follows a
    convolution takes over its layout. The copy shares all other tensors with the model; it is the model itself where
    there is nothing to gain (no such convolutions, another device) or where it would not compute the same, because its
    code depends on the layout of activations.

    Args:
        model: the model; it stays as it is.
        inputs: what it is called with.
    """
    tensors = named_tensors(model)
    weights = [
        m.weight for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Conv3d)) and type(m.weight) is nn.Parameter
    ]
    if not weights or any(t.device.type != "cpu" for t in tensors.values()):
        return model
    laid_out = {w: w.detach().clone(memory_format=FORMATS[w.dim()]) for w in weights}
    copied = sharing_tensors(model, {w: nn.Parameter(t, requires_grad=w.requires_grad) for w, t in laid_out.items()})
    try:
        why = "" if close(run(copied, inputs), run(model, inputs)) else "it computes something else"
    except Exception as error:  # whatever the code of a model raises for activations in another layout
        why = first_line(error)
    if why:
        log.info("%s keeps the usual memory layout: with channels side by side, %s", type(model).__name__, why)
    return model if why else copied


def in_usual_layout(model: nn.Module) -> None:
    """Put the convolutions of a model back into the layout in which PyTorch makes them, in place."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            module.weight.data = module.weight.detach().contiguous()


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A copy of a tensor in the layout of another with as many axes."""
    last = FORMATS.get(other.dim())
    if last is None or other.is_contiguous() or not other.is_contiguous(memory_format=last):
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.clone(memory_format=last)
