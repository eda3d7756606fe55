"""The block form of a layer: the non-zero blocks of its weight, and the base class that multiplies only these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..core.arrays import Bools, Ints
from ..errors import DataError
from ..surgery.layout import like

# A few slices are cheaper to join than an index is to look up.
MOST_RUNS = 8


@dataclass(frozen=True, eq=False)
class Group:
    """Output channels that read the same input channels: one non-zero block of a fused weight.

    Attributes:
        rows: positions of the output channels, on axis 0 of the weight.
        cols: positions of the input channels, on axis 1 of the weight.
    """

    rows: Ints
    cols: Ints

    @property
    def area(self) -> int:
        return len(self.rows) * len(self.cols)


def row_groups(rows: Bools, cols: Bools) -> list[Group]:
    """The non-zero blocks of a weight.

    An entry can differ from zero only where its row and its column have a model in common. Rows that read the same
    columns form one group, so every entry is in at most one block and no two products have to be added. Groups are
    in the order of their first row.

    Args:
        rows: (out × models) which models write each output channel.
        cols: (in × models) which models write each input channel.
    """
    sets, group_of = np.unique(rows, axis=0, return_inverse=True)
    reads = (sets.astype(np.int64) @ cols.T.astype(np.int64)) > 0
    kinds, kind_of = np.unique(reads, axis=0, return_inverse=True)
    of_row = kind_of.reshape(-1)[group_of.reshape(-1)]
    groups = [Group(np.flatnonzero(of_row == k), np.flatnonzero(kind)) for k, kind in enumerate(kinds)]
    return sorted(groups, key=lambda g: int(g.rows[0]))


class Block(nn.Module):
    """The weights of one group of output channels: (rows × columns × kernel), and which columns these are.

    Contiguous columns are a slice of the input without a copy; a few runs of columns are joined, more are gathered.
    """

    index: Tensor | None

    def __init__(self, rows: Tensor, group: Group, *, trained: bool) -> None:
        """Cut a block out of a dense weight.

        Args:
            rows: (rows × all columns × kernel) the rows of the group.
            group: the group.
            trained: whether the weights of the block take gradients.
        """
        super().__init__()
        cuts = np.flatnonzero(np.diff(group.cols) != 1) + 1
        self.runs = tuple((int(run[0]), len(run)) for run in np.split(group.cols, cuts))
        self.whole = self.runs == ((0, rows.shape[1]),)
        gathered = len(self.runs) > MOST_RUNS
        index = torch.from_numpy(group.cols).to(rows.device) if gathered else None
        self.register_buffer("index", index, persistent=False)
        if gathered:
            self.runs = ()
        self.weight = nn.Parameter(like(self.columns(rows.detach(), 1), rows), requires_grad=trained)

    def columns(self, x: Tensor, dim: int) -> Tensor:
        """The columns of the block, taken from a dimension that carries all columns."""
        if self.whole:
            return x
        runs = self.runs
        if len(runs) == 1:
            return x.narrow(dim, *runs[0])
        if self.index is not None:
            return x.index_select(dim, self.index)
        return torch.cat([x.narrow(dim, *run) for run in runs], dim)

    def widened(self, columns: int) -> Tensor:
        """(rows × all columns × kernel), zero outside the block."""
        weight = self.weight
        if self.whole:
            return weight
        index = self.columns(torch.arange(columns, device=weight.device), 0)
        zeros = weight.new_zeros((weight.shape[0], columns, *weight.shape[2:]))
        return zeros.index_copy(1, index, weight)

    def extra_repr(self) -> str:
        rows, cols, *kernel = self.weight.shape
        where = ", ".join(f"{start}:{start + length}" for start, length in self.runs) or "gathered"
        return f"{rows}, columns={where} ({cols})" + (f", kernel={tuple(kernel)}" if kernel else "")


class BlockLayer(nn.Module):
    """A layer whose weight is held as blocks, one for every group of output channels.

    Parameters are `blocks.<k>.weight` and `bias`, which is whole and in the order of the channels. `weight` is the
    dense weight, assembled on access. A dense state dict, with `weight` in place of the blocks, can be loaded too.
    """

    blocks: nn.ModuleList
    bias: nn.Parameter | None
    rows: Tensor | None  # the rows of the blocks one after the other, unless that is the order of the channels
    order: Tensor | None  # the inverse of that permutation
    dim: ClassVar[int]  # the dimension of the channels, counted from the end
    dense_class: ClassVar[type[nn.Module]]

    def __init__(self, layer: nn.Linear | _ConvNd, groups: Sequence[Group]) -> None:
        """The block form of a dense layer; the bias is the layer's own parameter.

        Args:
            layer: an nn.Linear, or a convolution with one group.
            groups: a partition of its output channels; the weight is zero outside their columns.
        """
        super().__init__()
        common = vars(nn.Module())
        self.settings = tuple(name for name in vars(layer) if name not in common)
        for name in self.settings:
            setattr(self, name, getattr(layer, name))
        weight = layer.weight
        self.outputs, self.inputs = weight.shape[:2]
        self.sizes = [len(g.rows) for g in groups]
        rows = np.concatenate([g.rows for g in groups])
        sorted_already = bool((np.diff(rows) > 0).all())
        for name, index in (("rows", rows), ("order", np.argsort(rows))):
            held = None if sorted_already else torch.from_numpy(index).to(weight.device)
            self.register_buffer(name, held, persistent=False)
        self.bias = cast("nn.Parameter | None", layer.bias)
        parts = zip(self._split(weight), groups, strict=True)
        self.blocks = nn.ModuleList(Block(part, group, trained=weight.requires_grad) for part, group in parts)
        self.train(layer.training)

    @property
    def weight(self) -> Tensor:
        """(out × in × kernel) the dense weight, differentiable with respect to the blocks."""
        return self._joined([b.widened(self.inputs) for b in self._held()], 0)

    def cut(self, dense: Tensor) -> list[Tensor]:
        """The entries of a dense weight that the blocks hold."""
        return [b.columns(part, 1) for b, part in zip(self._held(), self._split(dense), strict=True)]

    def holds(self, dense: Tensor) -> bool:
        """Whether a dense weight is zero outside the blocks."""
        inside = sum(int(torch.count_nonzero(part)) for part in self.cut(dense))
        return inside == int(torch.count_nonzero(dense))

    def dense(self) -> nn.Module:
        """The dense layer with the same numbers; the bias is this layer's own parameter."""
        layer = self.dense_class.__new__(self.dense_class)
        nn.Module.__init__(layer)
        for name in self.settings:
            setattr(layer, name, getattr(self, name))
        trained = next(self._held()).weight.requires_grad
        layer.weight = nn.Parameter(self.weight.detach().contiguous(), requires_grad=trained)
        layer.register_parameter("bias", self.bias)
        return layer.train(self.training)

    def _split(self, tensor: Tensor) -> Sequence[Tensor]:
        """Per block, its part of a tensor that carries all output channels on dimension 0."""
        return (tensor if self.rows is None else tensor.index_select(0, self.rows)).split_with_sizes(self.sizes)

    def _held(self) -> Iterator[Block]:
        return iter(cast("Iterable[Block]", self.blocks))

    def _parts(self) -> Iterator[tuple[Block, Tensor | None]]:
        """Every block with its part of the bias."""
        bias = self.bias
        biases = [None] * len(self.sizes) if bias is None else self._split(bias)
        return zip(self._held(), biases, strict=True)

    def _joined(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        joined = torch.cat(list(parts), dim)
        return joined if self.order is None else joined.index_select(dim, self.order)

    def _check(self, x: Tensor) -> None:
        """Check the width: a slice of an input that is too wide would go unnoticed."""
        if x.dim() < -self.dim or x.shape[self.dim] != self.inputs:
            raise DataError(
                f"{type(self).__name__} takes {self.inputs} channels on dimension {self.dim}, got an input of shape "
                f"{tuple(x.shape)}: pass the input that the dense layer would get"
            )

    def _in_place(self, x: Tensor) -> bool:
        """Whether products may be written into their slices of one output, which saves a copy of it.

        Where autograd, autocast, function transforms or a tracer must see the products, they are joined instead.
        """
        return self.rows is None and not (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or torch._C._is_tracing()
            or torch.is_autocast_enabled(x.device.type)
            or torch._C._are_functorch_transforms_active()
        )

    def _linear(self, x: Tensor) -> Tensor:
        """(… × in) → (… × out); a kernel of one position is ignored."""
        parts = self._parts()
        if not self._in_place(x):
            return self._joined([F.linear(b.columns(x, -1), b.weight.flatten(1), bias) for b, bias in parts], -1)
        flat = x.reshape(-1, self.inputs)
        out = flat.new_empty(flat.shape[0], self.outputs)
        for (block, bias), place in zip(parts, out.split_with_sizes(self.sizes, 1), strict=True):
            taken, weight = block.columns(flat, 1), block.weight.flatten(1).t()
            if bias is None:
                torch.mm(taken, weight, out=place)
            else:
                torch.addmm(bias, taken, weight, out=place)
        return out.view(*x.shape[:-1], self.outputs)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        """As in PyTorch; a dense weight in the state dict is first cut into its blocks."""
        dense = state_dict.pop(f"{prefix}weight", None)
        if dense is not None:
            problem = self._problem(dense)
            if problem:
                lists[-1].append(f"{prefix}weight {problem}")
            parts = [b.weight for b in self._held()] if problem else self.cut(dense)
            state_dict.update({f"{prefix}blocks.{k}.weight": part.detach().clone() for k, part in enumerate(parts)})
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)

    def _problem(self, dense: Tensor) -> str | None:
        """Why a dense weight cannot be loaded."""
        kernel = next(self._held()).weight.shape[2:]
        if tuple(dense.shape) != (self.outputs, self.inputs, *kernel):
            return f"has shape {tuple(dense.shape)}, but the blocks are of {(self.outputs, self.inputs, *kernel)}"
        if not self.holds(dense):
            return "is not zero outside the blocks: it belongs to another plan, or was trained dense"
        return None

    def extra_repr(self) -> str:
        held = sum(b.weight.numel() for b in self._held())
        return f"{self.inputs}, {self.outputs}, bias={self.bias is not None}, entries={held}"
