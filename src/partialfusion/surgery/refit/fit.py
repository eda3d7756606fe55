"""One step of refitting: the fitted affine map, and how it is written into a weight and its norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from .normal_equations import DEAD, System
from .steps import Step

# Rows that may read the same columns, and these columns.
Block = tuple[Tensor, Tensor]
# A row whose squared error is below this part of its target is right: what is left is rounding of single precision.
RIGHT = 1e-9


@dataclass(frozen=True)
class Affine:
    """The map x → matrix · x + shift of every group: (groups × outputs × inputs) and (groups × outputs)."""

    matrix: Tensor
    shift: Tensor


def blocks(rows: np.ndarray, columns: np.ndarray, device: torch.device) -> list[Block]:
    """Rows by the set of models that write them, with the columns that share a model with them.

    Args:
        rows: (outputs × models) which models write an output.
        columns: (inputs × models) which models write an input.
        device: for the indices.
    """
    sets, which = np.unique(rows, axis=0, return_inverse=True)
    found = []
    for number, models in enumerate(sets):
        written, allowed = np.flatnonzero(which.reshape(-1) == number), np.flatnonzero((columns & models).any(1))
        if len(allowed):
            found.append((torch.from_numpy(written).to(device), torch.from_numpy(allowed).to(device)))
    return found


def fit(
    system: System, merged: Tensor, parts: Sequence[Block], ridge: float, *, intercept: bool, scale: Tensor | None
) -> Affine:
    """Least squares, shrunk towards the merged weights; rows that are right already stay as they are.

    Args:
        system: normal equations of the inputs and targets.
        merged: (groups × outputs × inputs).
        parts: rows, and the columns they may use; rows in no part stay as they are.
        ridge: the weight of the shrinkage, relative to the mean diagonal of the normal matrix.
        intercept: whether a shift is fitted.
        scale: (groups × outputs) of the norm that follows, if any. Rows then shrink towards the multiple of the merged
            ones that has the spread of the targets; towards this one, where they do not vary on the data.
    """
    anchor = merged if scale is None else merged * _spread_like_targets(system, merged, scale)[..., None]
    residual = system.cross - system.times(anchor.mT)
    missed = system.spread - (anchor * (system.cross + residual).mT).sum(-1)
    wrong = missed > RIGHT * system.spread
    matrix = anchor.clone()
    for rows, columns in parts:
        change = system.solve(residual[:, columns][..., rows], ridge, columns)
        matrix[:, rows[:, None], columns] += change.mT * wrong[:, rows, None]
    shift = (system.t_mean - system.x_mean @ matrix.mT).squeeze(1)
    return Affine(matrix, shift if intercept else torch.zeros_like(shift))


def _spread_like_targets(system: System, merged: Tensor, otherwise: Tensor) -> Tensor:
    _, var = system.moments(merged)
    energy = var * max(1, system.count - 1)
    alive = energy > DEAD * (merged.square() @ system.raw[..., None]).squeeze(-1)
    return torch.where(alive, (system.spread / energy).sqrt(), otherwise)


def scale_of(norm: _NormBase) -> Tensor:
    """(channels,) what a norm multiplies its input with."""
    statistics = _Statistics.of(norm)
    std = (statistics.var.double() + norm.eps).sqrt()
    return 1 / std if statistics.scale is None else statistics.scale.detach().double() / std


def write(
    step: Step, system: System, merged: Tensor, found: Affine, tensors: Mapping[str, Tensor], norm: _NormBase | None
) -> None:
    """Make a step's weight, bias and norm compute the fitted map.

    Where a norm follows, the rows of the weight keep the length they had, for only their direction matters to it.
    """
    weight = None if step.name is None else tensors[step.name]
    bias = None if step.bias is None else tensors[step.bias]
    if norm is None:
        assert weight is not None
        weight.copy_(step.layout.weight(found.matrix, weight))
        if bias is not None:
            bias.copy_(found.shift.reshape(-1))
        return
    if weight is None:
        rows, scale = merged, found.matrix.squeeze(-1)
    else:
        rows, scale = _of_length(found.matrix, merged, keep=norm.weight is not None)
        weight.copy_(step.layout.weight(rows, weight))
    scale, shift, mean, var = (t.reshape(-1) for t in (scale, found.shift, *system.moments(rows)))
    offset = torch.zeros_like(shift) if bias is None else bias.to(shift)
    write_norm(norm, scale, shift - scale * offset, mean + offset, var)


def _of_length(matrix: Tensor, merged: Tensor, *, keep: bool) -> tuple[Tensor, Tensor]:
    """Rows with the length of the merged ones, and the (groups × outputs) factors that make them what they were.

    A row that became zero keeps the merged one, with factor zero, if that is wanted: it can still be trained.
    """
    before, after = (m.norm(dim=-1) for m in (merged, matrix))
    gone = (after <= 1e-12 * before) & keep
    stretch = torch.where((before > 0) & (after > 0) & ~gone, before / after, 1.0)
    rows = torch.where(gone[..., None], merged, matrix * stretch[..., None])
    return rows, torch.where(gone, 0.0, 1 / stretch)


def write_norm(norm: _NormBase, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor) -> None:
    """Make a norm compute scale · u + shift of an input u with these statistics, which become its own.

    What it has no parameter for goes into the statistics instead.
    """
    own = _Statistics.of(norm)
    std = (var + norm.eps).sqrt()
    if own.scale is None:
        std = torch.where(scale > 0, 1 / scale, std)
        var = (std.square() - norm.eps).clamp_min(0)
    if own.shift is None:
        mean = torch.where(scale != 0, -shift / scale, mean)
    own.mean.copy_(mean)
    own.var.copy_(var)
    if own.scale is not None:
        own.scale.copy_(scale * std)
    if own.shift is not None:
        own.shift.copy_(shift + scale * mean)


@dataclass(frozen=True)
class _Statistics:
    """The tensors of a norm that runs on stored statistics."""

    mean: Tensor
    var: Tensor
    scale: Tensor | None
    shift: Tensor | None

    @classmethod
    def of(cls, norm: _NormBase) -> _Statistics:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        return cls(norm.running_mean, norm.running_var, norm.weight, norm.bias)
