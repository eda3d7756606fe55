"""How a weight acts on its inputs, as a matrix product: for every group, outputs = inputs · matrixᵀ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.observer import LayerCall, Observer

# Numbers in a chunk of patches: 32 MB in double precision.
CHUNK = 1 << 22

PerDimension = int | Sequence[int]


@dataclass(frozen=True)
class Layout:
    """How a weight is stored.

    Attributes:
        write: the axis that writes channels, those of one group where a transposed convolution has groups; the other
            one of the first two reads them.
        channels: the channel dimension, from the end, of what is read and of what is written.
        groups: number of groups of a convolution.
        flipped: a transposed convolution reads its kernel backwards.
    """

    write: int
    channels: int
    groups: int = 1
    flipped: bool = False

    def matrix(self, weight: Tensor) -> Tensor:
        """(groups × outputs × inputs) of a weight; inputs are ordered by place in the kernel, then by channel."""
        turned = weight.unflatten(0, (self.groups, -1)).movedim(1 + self.write, 1)
        if self.flipped:
            turned = turned.flip(list(range(3, turned.dim())))
        return turned.movedim(2, -1).flatten(2)

    def weight(self, matrix: Tensor, like: Tensor) -> Tensor:
        """The inverse of `matrix`, in the shape of a given weight."""
        turned = matrix.unflatten(2, (*like.shape[2:], -1)).movedim(-1, 2)
        if self.flipped:
            turned = turned.flip(list(range(3, turned.dim())))
        return turned.movedim(1, 1 + self.write).flatten(0, 1)

    @property
    def carries(self) -> int:
        """The axis that carries the channels, or groups of them, that the weight computes."""
        return self.write if self.groups == 1 else 0

    def sizes(self, weight: Tensor) -> tuple[int, int]:
        """How many positions a group has on the axis that carries it, and how many channels it writes."""
        held = weight.shape[self.carries] // self.groups
        return held, held if self.write == self.carries else weight.shape[self.write]

    def outputs(self, weight: Tensor) -> int:
        """The number of channels that the weight writes."""
        return self.groups * self.sizes(weight)[1]

    def rows(self, output: Tensor) -> Tensor:
        """(samples and positions × channels) of what the weight computes."""
        return output.movedim(self.channels, -1).reshape(-1, output.shape[self.channels])


@dataclass(frozen=True)
class Window:
    """The patches that a convolution reads; for a linear layer, a window without dimensions.

    Attributes:
        kernel, stride, dilation: one number per dimension.
        padding: zeros before and after, per dimension; below zero, what is cut off.
        spread: a transposed convolution sets its inputs this far apart, with zeros between.
    """

    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    spread: tuple[int, ...] = ()

    @classmethod
    def convolution(
        cls, kernel: Sequence[int], stride: PerDimension, padding: str | PerDimension, dilation: PerDimension
    ) -> Window:
        n = len(kernel)
        dilations = _each(dilation, n)
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
            pads = tuple((t // 2, t - t // 2) for t in total)
        else:
            pads = tuple((p, p) for p in _each(0 if isinstance(padding, str) else padding, n))
        return cls(tuple(kernel), _each(stride, n), dilations, pads, (1,) * n)

    @classmethod
    def transposed(
        cls,
        kernel: Sequence[int],
        stride: PerDimension,
        padding: PerDimension,
        output_padding: PerDimension,
        dilation: PerDimension,
    ) -> Window:
        n = len(kernel)
        dilations = _each(dilation, n)
        pads = []
        for k, d, p, extra in zip(kernel, dilations, _each(padding, n), _each(output_padding, n), strict=True):
            pads.append((d * (k - 1) - p, d * (k - 1) - p + extra))
        return cls(tuple(kernel), (1,) * n, dilations, tuple(pads), _each(stride, n))

    def patches(self, x: Tensor) -> Tensor:
        """A view (batch × places × kernel × channels) of x (batch × positions × channels)."""
        x = F.pad(self._spread(x), [0, 0, *(side for pair in reversed(self.padding) for side in pair)])
        for dim, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True), start=1):
            x = x.unfold(dim, (k - 1) * d + 1, s)[..., ::d]
        return x.movedim(len(self.kernel) + 1, -1)

    def _spread(self, x: Tensor) -> Tensor:
        for dim, s in enumerate(self.spread, start=1):
            if s > 1:
                shape = list(x.shape)
                shape[dim] = (shape[dim] - 1) * s + 1
                wide = x.new_zeros(shape)
                wide[(slice(None),) * dim + (slice(None, None, s),)] = x
                x = wide
        return x


def geometry(call: LayerCall, observer: Observer) -> tuple[Layout, Window] | None:
    """How the weight of a call is stored and what it reads; None where no least squares can fit it.

    A norm counts as one weight per channel.
    """
    if call.kind == "norm":
        norm = observer.norms.get(call.name)
        if norm is None or call.arguments.get("eps", 1e-5) != norm.eps:
            return None
        return Layout(0, 1 - call.x.dim(), call.x.shape[1]), Window()
    weight, given, bias = call.weight, call.arguments, call.arguments.get("bias")
    if not isinstance(observer.tensors[call.name], nn.Parameter) or call.rows is not None:
        return None
    if bias is not None and (observer.bias(call) is None or bias.dim() != 1):
        return None
    if call.operation.startswith("conv"):
        return None if observer.is_transposed(call) else _convolution(call)
    if call.operation == "embedding" or weight.dim() > 2 or (call.left and call.x.dim() < 2):
        return None
    if given.keys() & {"alpha", "beta"}:
        return None
    writes_first = call.operation == "linear" or call.left
    return Layout(int(writes_first == observer.is_transposed(call)), -2 if call.left else -1), Window()


def _convolution(call: LayerCall) -> tuple[Layout, Window] | None:
    kernel, dim, given = call.weight.shape[2:], 1 - call.weight.dim(), call.arguments
    groups, stride, padding, dilation = (
        given.get(name, default) for name, default in (("groups", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    )
    if not call.operation.startswith("conv_transpose"):
        return Layout(0, dim, groups), Window.convolution(kernel, stride, padding, dilation)
    extra = given.get("output_padding", 0)
    return Layout(1, dim, groups, flipped=True), Window.transposed(kernel, stride, padding, extra, dilation)


def inputs(layout: Layout, window: Window, x: Tensor, rows: Tensor | None) -> Iterator[Tensor]:
    """What a weight reads, a chunk (groups × n × inputs) at a time and in double precision.

    Args:
        layout: how the weight is stored.
        window: the patches it reads.
        x: the input of the call.
        rows: which samples and positions of the output, in ascending order; None for all.
    """
    spatial = len(window.kernel)
    read = x.movedim(layout.channels, -1)
    patches = window.patches(read.reshape(-1, *read.shape[read.dim() - 1 - spatial :]))
    places, channels = patches.shape[: 1 + spatial], patches.shape[-1]
    for part in _slices(patches, spatial) if rows is None else _picks(patches, rows, places):
        found = patches[part].double().reshape(-1, math.prod(window.kernel), layout.groups, channels // layout.groups)
        yield found.permute(2, 0, 1, 3).reshape(layout.groups, len(found), -1)


def grouped(rows: Tensor, groups: int) -> Tensor:
    """(groups × n × outputs) in double precision, of (n × channels)."""
    return rows.double().reshape(len(rows), groups, -1).transpose(0, 1)


def _slices(patches: Tensor, spatial: int) -> Iterator[tuple[slice, ...]]:
    """Parts of the batch, and of the first dimension of places where a single sample is too large."""
    step = CHUNK * len(patches) // max(1, patches.numel())
    if step or not spatial:
        step = max(1, step)
        yield from ((slice(i, i + step),) for i in range(0, len(patches), step))
        return
    step = max(1, CHUNK * patches.shape[1] // patches[0].numel())
    for sample in range(len(patches)):
        for i in range(0, patches.shape[1], step):
            yield slice(sample, sample + 1), slice(i, i + step)


def _picks(patches: Tensor, rows: Tensor, places: Sequence[int]) -> Iterator[tuple[Tensor, ...]]:
    """The chosen samples and places."""
    step = max(1, CHUNK * math.prod(places) // max(1, patches.numel()))
    for part in rows.to(patches.device).split(step):
        yield torch.unravel_index(part, tuple(places))


def _each(value: PerDimension, n: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * n if len(values) == 1 else values
