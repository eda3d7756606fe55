"""Partial assignment against POT's network simplex with a sink, along a whole path of sizes, and at large n."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

from partialfusion.matching import partial_assignment, partial_assignments, partial_coupling
from partialfusion.text import table

from .timing import seconds

ALPHAS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
LARGE = 8192


def cost_of(n: int, seed: int = 0) -> np.ndarray:
    """Squared distances of noisy copies, in another order: what a space of two trained networks looks like."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 64))
    y = x[rng.permutation(n)] + 0.8 * rng.normal(size=(n, 64))
    return (x**2).sum(1)[:, None] + (y**2).sum(1)[None, :] - 2 * x @ y.T


def size(n: int, alpha: float) -> int:
    return n - round(alpha * n)


def main() -> None:
    print(
        table(("channels", "partial_assignment", "POT with a sink", "ratio", "objective gap"), singles(), align=">>>>>")
    )
    print()
    print(table(("channels", "one size", "seven sizes", "seven / one"), sweeps(), align=">>>>"))
    print()
    m = json.loads(subprocess.run([sys.executable, "-m", "benchmarks.solvers"], check=True, capture_output=True).stdout)
    print(f"{LARGE} channels, 40 % isolated: {m['seconds']:.1f} s, peak memory {m['gigabytes']:.2f} GB, cost included")


def singles() -> list[tuple[object, ...]]:
    partial_assignment(cost_of(8), 5)  # compiles, or loads what was compiled
    rows = []
    for n in (128, 512, 2048):
        cost, k, ones = cost_of(n), size(n, 0.4), np.ones(n)
        found = partial_assignment(cost, k)
        ours = seconds(lambda cost=cost, k=k: partial_assignment(cost, k), repeats=3)  # type: ignore[misc]
        start = time.perf_counter()
        plan = partial_coupling(cost, ones, ones, k)
        theirs = time.perf_counter() - start
        gap = cost[found].sum() / (plan * cost).sum() - 1
        rows.append((n, f"{ours:.4f} s", f"{theirs:.4f} s", f"{theirs / ours:.1f}×", f"{gap:.1e}"))
    return rows


def sweeps() -> list[tuple[object, ...]]:
    rows = []
    for n in (512, 2048):
        cost, sizes = cost_of(n), [size(n, alpha) for alpha in ALPHAS]
        one = seconds(lambda cost=cost, n=n: partial_assignment(cost, size(n, 0.4)), repeats=3)  # type: ignore[misc]
        all_of_them = seconds(lambda cost=cost, s=sizes: partial_assignments(cost, s), repeats=3)  # type: ignore[misc]
        rows.append((n, f"{one:.4f} s", f"{all_of_them:.4f} s", f"{all_of_them / one:.2f}"))
    return rows


def large() -> dict[str, float]:
    """In a process of its own, for its memory."""
    cost = cost_of(LARGE)
    start = time.perf_counter()
    partial_assignment(cost, size(LARGE, 0.4))
    elapsed = time.perf_counter() - start
    return {"seconds": elapsed, "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


if __name__ == "__main__":
    print(json.dumps(large()))
