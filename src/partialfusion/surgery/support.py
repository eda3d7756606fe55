"""The support of fused parameters: which models contribute to which entries. An entry without any is zero."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..blueprint import Space
from ..core.arrays import Bools
from ..kernels import Plan

# For every axis, a (length × models) table of the models that contribute at each position; None where all do.
ParameterSupport = tuple[Bools | None, ...]


def parameter_supports(
    shapes: Mapping[str, Sequence[int]], layout: Mapping[str, Space], plan: Plan
) -> dict[str, ParameterSupport]:
    """Name → support of every tensor of a fused model.

    The models that write a channel contribute at its positions; at a position of no channel, all of them do, and so
    do they where a weight reads the channel by a dense kernel.

    Args:
        shapes: name → shape of the fused model's tensors.
        layout: where the channels of every space sit in them.
        plan: which model writes which channel.
    """
    found: dict[str, list[Bools | None]] = {name: [None] * len(shape) for name, shape in shapes.items()}
    for name, space in layout.items():
        support = plan[name].support()
        if bool(support.all()):
            continue
        dense = plan[name].dense_readers
        for b in space.bindings:
            if b.role == "reads" and b.parameter in dense:
                continue
            if b.parameter not in found or b.index.size > shapes[b.parameter][b.axis]:  # one number for all channels
                continue
            table = found[b.parameter][b.axis]
            if table is None:
                table = np.ones((shapes[b.parameter][b.axis], plan.models), bool)
                found[b.parameter][b.axis] = table
            table[b.index.reshape(-1)] = np.repeat(support, b.index.shape[1], axis=0)
    return {name: tuple(tables) for name, tables in found.items()}


def supported_entries(shape: Sequence[int], support: ParameterSupport) -> int:
    """How many entries some model contributes to: those whose positions on all axes have a model in common."""
    tables = [t for t in support if t is not None]
    free = math.prod(n for n, t in zip(shape, support, strict=True) if t is None)
    if not tables:
        return free
    everyone = (1 << tables[0].shape[1]) - 1
    blocks = Counter({everyone: free})
    for table in tables:
        joined: Counter[int] = Counter()
        for models, positions in _sets(table).items():
            for others, size in blocks.items():
                joined[models & others] += positions * size
        blocks = joined
    return sum(size for models, size in blocks.items() if models)


def zero_mask(support: ParameterSupport) -> Bools:
    """True where no model contributes; of the tensor's shape, with length one along axes where all models do."""
    models = next((t.shape[1] for t in support if t is not None), 1)
    zero = np.ones((1,) * len(support), bool)
    for m in range(models):
        fills = np.ones((1,) * len(support), bool)
        for axis, table in enumerate(support):
            if table is not None:
                fills = fills & table[:, m].reshape([-1 if a == axis else 1 for a in range(len(support))])
        zero = zero & ~fills
    return zero


def filled(tensors: Mapping[str, Tensor], supports: Mapping[str, ParameterSupport]) -> list[str]:
    """The tensors that hold numbers where no model contributes: they have no zero blocks any more."""
    found = []
    for name, tensor in tensors.items():
        support = supports[name]
        if tensor.is_meta or all(table is None for table in support):
            continue
        zero = torch.from_numpy(zero_mask(support)).to(tensor.device)
        if bool(zero.any()) and bool((tensor.detach() != 0).logical_and_(zero).any()):
            found.append(name)
    return found


def _sets(table: Bools) -> Counter[int]:
    """Set of models, as bits → number of positions where exactly these contribute."""
    bits = [1 << m for m in range(table.shape[1])]
    rows, counts = np.unique(table, axis=0, return_counts=True)
    return Counter(
        {sum(b for b, has in zip(bits, row, strict=True) if has): int(n) for row, n in zip(rows, counts, strict=True)}
    )
