"""Wall-clock times of a fused MLP."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.timing import interleaved_times, medians

from ..internals import Coupling, Inputs, apply, grids, merge
from ..networks import mlp


@dataclass(frozen=True)
class Clock:
    """Time one forward pass: of a single MLP, of two, and of their fusion in dense and in block form.

    Calls are interleaved, so that other work on the machine slows all of them alike. Times depend on the machine.

    Attributes:
        width: width of the three hidden layers.
        alpha: the isolated fraction of the channels.
        batch: batch size.
        seconds: time spent on measuring.
    """

    width: int
    alpha: float = 0.5
    batch: int = 64
    seconds: float = 10.0

    def run(self) -> dict[str, Any]:
        x = torch.randn(self.batch, 784, generator=torch.Generator().manual_seed(0))
        a, b = (mlp(784, *[self.width] * 3, 10).eval() for _ in range(2))
        fused = fused_by_index([a, b], x, self.alpha)
        dense, blocks = fused.model, pf.to_blocks(fused)
        functions = {
            "single": lambda: a(x),
            "ensemble": lambda: 0.5 * (a(x) + b(x)),
            "dense": lambda: dense(x),
            "blocks": lambda: blocks(x),
        }
        with torch.no_grad():
            times = interleaved_times(functions, seconds=self.seconds, most=sys.maxsize)
        walls = {name: wall for name, (wall, _) in medians(times).items()}
        single = walls["single"]
        ratios = {name: round(wall / single, 4) for name, wall in walls.items()}
        how = {
            "milliseconds": round(1000 * single, 4),
            "calls": len(times["single"]),
            "threads": torch.get_num_threads(),
        }
        return how | ratios


@dataclass(frozen=True)
class IndexFused:
    """A fusion without a matching: timing needs only the shapes."""

    model: nn.Module
    plan: pf.Plan
    layout: Mapping[str, pf.Space]


def fused_by_index(models: Sequence[nn.Module], x: Tensor, alpha: float, round_to: int = 1) -> IndexFused:
    """Two models fused channel by channel, except the first fraction alpha of the channels of every elastic space."""
    blueprint = pf.trace(models[-1], x, check=False)
    sizes = grids(round_to, blueprint, {s.name: [s.width] * 2 for s in blueprint}, "cpu", fuses=True)
    reductions = {}
    for space in blueprint:
        index = np.arange(space.width)
        isolated = round(sizes[space.name].alpha(alpha) * space.width) if space.kind == "elastic" else 0
        joined = index >= isolated
        reductions[space.name] = merge([Coupling.of_pairs(index, index, joined)], (0.5, 0.5))
    plan = pf.Plan(reductions, (0.5, 0.5))
    made = apply(models, [blueprint, blueprint], plan, Inputs.of(x))
    return IndexFused(made.model.eval(), plan, made.layout)
