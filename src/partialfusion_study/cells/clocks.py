"""Wall-clock times of a fused MLP."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.timing import interleaved_times, medians, paired_quartiles

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
        seconds: time spent on measuring, where the number of rounds is not given.
        rounds: the number of rounds, in each of which everything is called once, on one thread. The ratios are then
            medians over the rounds of ratios within a round, in CPU time, with their quartiles.
    """

    width: int
    alpha: float = 0.5
    batch: int = 64
    seconds: float = 10.0
    rounds: int | None = field(default=None, metadata={"added": True})

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
        if self.rounds is not None:
            return _in_rounds(functions, self.rounds)
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


def _in_rounds(functions: Mapping[str, Callable[[], Tensor]], rounds: int) -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            times = interleaved_times(functions, seconds=0.0, fewest=rounds, most=rounds)
        ratios = paired_quartiles(times, "single", torch.device("cpu"))
    finally:
        torch.set_num_threads(threads)
    single = medians(times)["single"][1]
    found: dict[str, Any] = {"milliseconds": round(1000 * single, 4), "calls": rounds, "threads": 1}
    for name, (low, middle, high) in ratios.items():
        found |= {name: round(middle, 4), f"{name}_low": round(low, 4), f"{name}_high": round(high, 4)}
    return found


@dataclass(frozen=True)
class IndexFused:
    """A fusion without a matching: timing needs only the shapes."""

    model: nn.Module
    plan: pf.Plan
    layout: Mapping[str, pf.Space]
    sources: tuple[nn.Module, ...]


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
    return IndexFused(made.model.eval(), plan, made.layout, tuple(models))
