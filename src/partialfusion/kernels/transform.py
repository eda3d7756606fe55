"""Applying kernels to tensors, by index operations or dense products: the one place where a weight is transformed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..core.arrays import Floats, Ints
from .pair import Pattern, ReadMap


@dataclass(frozen=True)
class AxisMap:
    """A sparse linear map of one tensor axis: entry e adds weight[e] × position source[e] to position target[e].

    `gather` means that every target position is hit exactly once and in order, `copy` that none is hit twice. A dense
    part has its own positions: its (sources × targets) matrix, and the (units × multiplicity) positions of both.
    """

    target: Ints
    source: Ints
    weight: np.ndarray | None
    length: int
    gather: bool
    copy: bool
    dense: tuple[tuple[Floats, Ints, Ints], ...] = ()

    @cached_property
    def in_place(self) -> bool:
        """Whether every position stays where it is, with whatever weight."""
        return self.gather and bool(np.array_equal(self.source, np.arange(self.length)))

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        """The tensor with its axis mapped; the tensor itself where nothing changes, so never to be written into."""
        device = tensor.device
        stays = self.in_place and tensor.shape[axis] == self.length
        taken = tensor if stays else tensor.index_select(axis, torch.from_numpy(self.source).to(device))
        if self.weight is not None:
            weight = torch.from_numpy(self.weight).to(device, tensor.dtype)
            weight = weight.view([-1 if a == axis else 1 for a in range(tensor.dim())])
            taken = taken * weight if stays else taken.mul_(weight)
        if self.gather:
            return taken
        shape = list(tensor.shape)
        shape[axis] = self.length
        result = tensor.new_zeros(shape)
        target = torch.from_numpy(self.target).to(device)
        result = result.index_copy_(axis, target, taken) if self.copy else result.index_add_(axis, target, taken)
        for matrix, old, new in self.dense:
            result.index_copy_(axis, torch.from_numpy(new.reshape(-1)).to(device), _combined(tensor, axis, matrix, old))
        return result

    def part(self, positions: Ints) -> tuple[Ints, AxisMap]:
        """The map to some of the target's positions alone.

        Args:
            positions: the positions of the target, sorted.

        Returns:
            the positions of the source that it needs, sorted, and the map from these to those.
        """
        assert not self.dense, "read maps are applied as wholes"
        chosen = np.isin(self.target, positions)
        source, place = np.unique(self.source[chosen], return_inverse=True)
        target = np.searchsorted(positions, self.target[chosen])
        weight = None if self.weight is None else self.weight[chosen]
        return source, AxisMap(target, place, weight, len(positions), self.gather, self.copy)

    def resized(self, old: int, new: int) -> AxisMap:
        """The same map of runs of positions, which have another size.

        Args:
            old: the size of the runs here; every run is mapped as a whole.
            new: their size in the map that is wanted.
        """
        assert not self.dense, "read maps have channels of their own, no runs"
        first = self.source % old == 0
        target, source = (
            ((index[first] // old * new)[:, None] + np.arange(new)).reshape(-1) for index in (self.target, self.source)
        )
        weight = None if self.weight is None else np.repeat(self.weight[first], new)
        return AxisMap(target, source, weight, self.length // old * new, self.gather, self.copy)


def _combined(tensor: Tensor, axis: int, matrix: Floats, index: Ints) -> Tensor:
    """The positions (sources × multiplicity) of an axis combined into (targets · multiplicity) others."""
    taken = tensor.index_select(axis, torch.from_numpy(index.reshape(-1)).to(tensor.device)).movedim(axis, -1)
    taken = taken.unflatten(-1, index.shape).transpose(-1, -2)
    combined = taken @ torch.from_numpy(matrix).to(tensor)
    return combined.transpose(-1, -2).flatten(-2).movedim(-1, axis)


def axis_map(
    parts: Sequence[tuple[Pattern | ReadMap, Ints, Ints]],
    source_length: int,
    target_length: int | None = None,
    *,
    fixed_weight: float = 1.0,
) -> AxisMap:
    """The map of one parameter axis.

    Args:
        parts: for every space on the axis, its kernel, and the (units × multiplicity) positions of the source and of
            the target units.
        source_length: length of the axis in the source model.
        target_length: length in the result; where missing, positions are counted on from the given ones.
        fixed_weight: the weight of positions that no space covers.

    Positions that no space covers belong to no channel: they keep their order.
    """
    sparse = [(p, old, new) for p, old, new in parts if isinstance(p, Pattern)]
    dense = tuple((p.matrix, old, new) for p, old, new in parts if isinstance(p, ReadMap))
    source = [old[p.source].reshape(-1) for p, old, _ in sparse]
    target = [new[p.target].reshape(-1) for p, _, new in sparse]
    weight = [np.repeat(p.weight, old.shape[1]) for p, old, _ in sparse]
    fixed = uncovered([old for _, old, _ in parts], source_length)
    covered = sum(new.size for _, _, new in parts)
    if target_length is None:
        target_length = covered + len(fixed)
        fixed_target = np.arange(covered, target_length)
    else:
        fixed_target = uncovered([new for _, _, new in parts], target_length)
    all_source = np.concatenate([*source, fixed])
    all_target = np.concatenate([*target, fixed_target])
    all_weight = np.concatenate([*weight, np.full(len(fixed), fixed_weight)])
    order = np.argsort(all_target, kind="stable")
    all_source, all_target, all_weight = all_source[order], all_target[order], all_weight[order]
    copy = bool((np.diff(all_target) > 0).all())
    return AxisMap(
        all_target,
        all_source,
        None if bool((all_weight == 1).all()) else all_weight,
        target_length,
        gather=copy and len(all_target) == target_length and not dense,
        copy=copy,
        dense=dense,
    )


def uncovered(indices: Sequence[Ints], length: int) -> Ints:
    """Positions of an axis that none of the index arrays holds."""
    free = np.ones(length, bool)
    for index in indices:
        free[index.reshape(-1)] = False
    return np.flatnonzero(free)
