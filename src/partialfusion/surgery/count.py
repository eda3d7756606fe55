"""Parameter counts: dense, and effective, which leaves out the blocks that are zero."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..blueprint import Blueprint, named_tensors
from ..kernels import Plan
from .apply import target_shapes


@dataclass(frozen=True)
class Count:
    """Parameters of a result.

    Attributes:
        dense: all entries of all parameters.
        effective: entries outside the zero blocks.
        single: parameters of the last model, to compare with.
    """

    dense: int
    effective: int
    single: int

    @property
    def ratio(self) -> float:
        """Effective parameters relative to the last model."""
        return self.effective / self.single


def count(model: nn.Module, blueprint: Blueprint, plan: Plan) -> Count:
    """Counts for a plan on the last model and its blueprint."""
    trained = [n for n, t in named_tensors(model).items() if isinstance(t, torch.nn.Parameter)]
    shapes = target_shapes(blueprint, plan)
    dense = sum(int(np.prod(shapes[n])) for n in trained)
    effective = sum(effective_size(n, shapes[n], blueprint, plan) for n in trained)
    return Count(dense, effective, sum(int(np.prod(blueprint.shapes[n])) for n in trained))


def effective_size(name: str, shape: tuple[int, ...], blueprint: Blueprint, plan: Plan) -> int:
    """Entries of a parameter that some model can fill: their channels on all axes have a model in common."""
    everyone = (1 << plan.models) - 1
    blocks = Counter({everyone: 1})
    for axis, length in enumerate(shape):
        groups = Counter({everyone: length})
        for space, binding in blueprint.axes.get(name, {}).get(axis, ()):
            sets = plan[space.name].support() @ (1 << np.arange(plan.models))
            for models, units in zip(*np.unique(sets, return_counts=True), strict=True):
                groups[int(models)] += int(units) * binding.index.shape[1]
                groups[everyone] -= int(units) * binding.index.shape[1]
        joined: Counter[int] = Counter()
        for a, x in blocks.items():
            for b, y in groups.items():
                joined[a & b] += x * y
        blocks = joined
    return sum(size for models, size in blocks.items() if models)
