"""Large tensors, a block of positions on one axis at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from .arrays import Ints

BLOCK = 2**22  # numbers of a block, at most, unless a single position has more

Part = tuple[int, Ints]  # an axis, and sorted positions on it


def fits(numbers: int) -> bool:
    """Whether so many numbers are no more than a block."""
    return numbers <= BLOCK


def blocks(positions: Ints, numbers: int) -> Iterator[Ints]:
    """Positions on an axis in blocks.

    Args:
        positions: the positions.
        numbers: how many numbers there are at each.
    """
    step = max(1, BLOCK // max(1, numbers))
    for start in range(0, len(positions), step):
        yield positions[start : start + step]


def parts(tensor: Tensor) -> Iterator[Part | None]:
    """The rows of a tensor in blocks, one after the other; a small one as a whole."""
    if fits(tensor.numel()):
        yield None
    else:
        yield from ((0, rows) for rows in blocks(np.arange(len(tensor)), tensor[0].numel()))


def taken(tensor: Tensor, part: Part | None) -> Tensor:
    """A part of a tensor, or all of it; nothing is copied where the positions follow each other."""
    if part is None:
        return tensor
    axis, positions = part
    first, count = (int(positions[0]), len(positions)) if len(positions) else (0, 0)
    if count == 0 or int(positions[-1]) - first + 1 == count:
        return tensor.narrow(axis, first, count)
    return tensor.index_select(axis, torch.from_numpy(positions).to(tensor.device))
