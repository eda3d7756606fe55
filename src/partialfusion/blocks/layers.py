"""The block forms of PyTorch's linear and convolution layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from .layer import Block, BlockLayer, Group


class BlockLinear(BlockLayer):
    """nn.Linear in block form: (… × in) → (… × out)."""

    dim = -1
    dense_class = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        return self._linear(input)


class BlockConv(BlockLayer):
    """A convolution in block form: (batch × in × positions) → (batch × out × positions)."""

    convolve: ClassVar[Callable[..., Tensor]]
    channels_last: ClassVar[torch.memory_format | None] = None
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    padding_mode: str
    _reversed_padding_repeated_twice: list[int]

    def __init__(self, layer: _ConvNd, groups: Sequence[Group]) -> None:
        super().__init__(layer, groups)
        unpadded = isinstance(self.padding, str) or not any(self.padding)
        self.pointwise = unpadded and set(self.kernel_size) == {1}

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        if self.pointwise:
            return self._pointwise(input)
        x, padding = input, self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode), (0,)
        convolve = type(self).convolve
        parts = [
            convolve(b.columns(x, self.dim), b.weight, bias, self.stride, padding, self.dilation)
            for b, bias in self._parts()
        ]
        return self._joined(parts, self.dim)

    def _pointwise(self, x: Tensor) -> Tensor:
        """A kernel of one position is a matrix product, which reads slices of channels without a copy."""
        last = self.channels_last
        by_channel = last is not None and x.dim() == 1 - self.dim and x.is_contiguous(memory_format=last)
        if set(self.stride) != {1}:
            every: tuple[Any, ...] = tuple(slice(None, None, s) for s in self.stride)
            x = x[(..., *every)]
        if by_channel:
            return self._linear(x.movedim(self.dim, -1)).movedim(-1, self.dim)
        batch, positions = x.shape[: self.dim], x.shape[self.dim + 1 :]
        flat = x.flatten(self.dim + 1)
        return self._products(flat if batch else flat[None]).view(*batch, self.outputs, *positions)

    def _products(self, x: Tensor) -> Tensor:
        """(batch × in × positions) → (batch × out × positions)."""

        def product(block: Block, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
            taken, weight = block.columns(x, 1), block.weight.flatten(1).expand(x.shape[0], -1, -1)
            if bias is None:
                return torch.bmm(weight, taken, out=out)
            return torch.baddbmm(bias[:, None], weight, taken, out=out)

        parts = self._parts()
        if not self._in_place(x):
            return self._joined([product(b, bias) for b, bias in parts], 1)
        result = x.new_empty(x.shape[0], self.outputs, x.shape[2])
        for (block, bias), place in zip(parts, result.split_with_sizes(self.sizes, 1), strict=True):
            product(block, bias, out=place)
        return result


class BlockConv1d(BlockConv):
    """nn.Conv1d in block form."""

    dim = -2
    dense_class = nn.Conv1d
    convolve = F.conv1d


class BlockConv2d(BlockConv):
    """nn.Conv2d in block form."""

    dim = -3
    dense_class = nn.Conv2d
    convolve = F.conv2d
    channels_last = torch.channels_last


class BlockConv3d(BlockConv):
    """nn.Conv3d in block form."""

    dim = -4
    dense_class = nn.Conv3d
    convolve = F.conv3d
    channels_last = torch.channels_last_3d


BLOCK_FORMS: dict[type[nn.Module], type[BlockLayer]] = {
    nn.Linear: BlockLinear,
    nn.Conv1d: BlockConv1d,
    nn.Conv2d: BlockConv2d,
    nn.Conv3d: BlockConv3d,
}
