"""Which elements of a tensor that belongs to no channel are copies of one element.

Labels show this where a dimension is expanded. A reshape that joins such a dimension with another one, as when a mask
that is the same for all heads is laid out head by head, would hide it; numbers that move along keep it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .labels import FIXED, compact
from .values import Activation, Constant


def numbered(value: Activation | Constant) -> Tensor:
    """A number for every element of a tensor without channels; copies of one element have the same."""
    if isinstance(value, Constant):
        return value.value.unique(return_inverse=True)[1].view(value.value.shape)
    if value.numbers is not None:
        return value.numbers
    small = compact(value.labels)
    return torch.arange(small.numel()).view(small.shape).expand(value.labels.shape)


def without_channels(numbers: Tensor) -> Activation:
    """A tensor that belongs to no channel, expanded wherever all elements along a dimension are copies."""
    small = numbers
    for dim in range(numbers.dim()):
        if small.shape[dim] > 1 and bool((small == small.narrow(dim, 0, 1)).all()):
            small = small.narrow(dim, 0, 1)
    return Activation(torch.full(small.shape, FIXED).expand(numbers.shape), numbers=numbers)


def combined(operands: Sequence[Activation | Constant], shape: tuple[int, ...]) -> Activation:
    """What an element-wise operation makes of tensors without channels: copies where all operands have copies."""
    found, *others = [numbered(v) for v in operands]
    for other in others:
        pairs = found * (int(other.max()) + 1 if other.numel() else 1) + other
        found = pairs.unique(return_inverse=True)[1].view(pairs.shape)
    return without_channels(found.expand(shape))
