"""What many results of the same models cost beside one: frontiers and budgets share a pass and an alignment."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

import partialfusion as pf
from partialfusion.core.text import table
from partialfusion_study.networks import ResNet18

ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
IMAGES, BATCH = 1000, 250
ROUNDS = 3


def pair(width: int) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [ResNet18(width).eval() for _ in range(2)]


def interleaved(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of calls that are made alternately, after one of each to warm up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(ROUNDS + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if round_number:
                times[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in times.items()}


def frontier_row() -> tuple[object, ...]:
    models, x = pair(16), torch.randn(IMAGES, 3, 32, 32)
    data, example = list(x.split(BATCH)), x[:2]
    shared: dict[str, Any] = {"data": data, "blueprint": pf.trace(models[-1], example), "progress": False}
    found = interleaved(
        {
            "one": lambda: pf.fuse(models, example, alpha=0.4, method="partial-ot", **shared),
            "all": lambda: pf.frontier(
                models, example, evaluate=lambda m: 0.0, alphas=ALPHAS, methods=["partial-ot"], **shared
            ),
        }
    )
    label = f"frontier of {len(ALPHAS)} alphas, ResNet-18 of width 16, {IMAGES:,} images"
    return label, "fuse at alpha=0.4", f"{found['all']:.1f} s", f"{found['all'] / found['one']:.2f}"


def budget_rows() -> list[tuple[object, ...]]:
    models, x = pair(64), torch.randn(2, 3, 32, 32)
    found = interleaved(
        {
            "alpha=0": lambda: pf.fuse(models, x, alpha=0.0, progress=False),
            "alpha=0.2, about the same size": lambda: pf.fuse(models, x, alpha=0.2, progress=False),
            "budget": lambda: pf.fuse(models, x, budget=1.3, progress=False),
        }
    )
    taken = found.pop("budget")
    label = "budget of 1.3, ResNet-18 of width 64, by weights"
    return [(label, f"fuse at {beside}", f"{taken:.1f} s", f"{taken / other:.2f}") for beside, other in found.items()]


def main() -> None:
    rows = [frontier_row(), *budget_rows()]
    print(table(("call", "beside", "time", "ratio"), rows, align="<<>>"))


if __name__ == "__main__":
    main()
