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
from partialfusion.blocks.turns import in_turns, medians

from ..internals import Coupling, apply, merge
from ..networks import mlp


@dataclass(frozen=True)
class Clock:
    """Time of one forward pass: a single MLP, two of them, and their fusion with zeros and in blocks.

    Calls are made in turns, so that whatever else the machine does meets all of them; the result is of this machine.

    Attributes:
        width: of the three hidden layers.
        alpha: isolated share.
        batch: images at once.
        seconds: spent on measuring.
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
            times = in_turns(functions, seconds=self.seconds, most=sys.maxsize)
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
    """A fusion whose matching nobody looked for: timing needs the shapes only."""

    model: nn.Module
    plan: pf.Plan
    layout: Mapping[str, pf.Space]


def fused_by_index(models: Sequence[nn.Module], x: Tensor, alpha: float) -> IndexFused:
    """Two models fused channel by channel: of every elastic space all but the first share alpha of the channels."""
    blueprint = pf.trace(models[-1], x, check=False)
    reductions = {}
    for space in blueprint:
        index = np.arange(space.width)
        joined = index >= (round(alpha * space.width) if space.kind == "elastic" else 0)
        reductions[space.name] = merge([Coupling.of_pairs(index, index, joined)], (0.5, 0.5))
    plan = pf.Plan(reductions, (0.5, 0.5))
    made = apply(models, [blueprint, blueprint], plan, (x,))
    return IndexFused(made.model.eval(), plan, made.layout)
