"""Partial assignment against POT's network simplex with a sink, over a sweep of alpha, and of many channels."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from partialfusion import demo as digits
from partialfusion.core.text import table
from partialfusion.solvers import fused_count, partial_assignment, partial_assignments, partial_coupling

from .timing import seconds

ALPHA, ALPHAS = 0.4, (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
LARGE = 8192
STEPS = 200  # of training


def cost_of(n: int, seed: int = 0) -> np.ndarray:
    """Squared distances of noisy copies, in another order: what a space of two alike networks looks like."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 64))
    return distances(x, x[rng.permutation(n)] + 0.8 * rng.normal(size=(n, 64)))


def trained_cost_of(n: int) -> np.ndarray:
    """Squared distances between the n hidden channels of two networks that were trained from different starts."""
    images = digits.load()[0]
    return distances(*(activations(n, images, seed) for seed in (0, 1)))


def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x**2).sum(1)[:, None] + (y**2).sum(1)[None, :] - 2 * x @ y.T


def activations(n: int, sample: digits.Sample, seed: int) -> np.ndarray:
    """(n × images) of a network with one hidden layer, trained on the digits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(digits.PIXELS, n), nn.ReLU(), nn.Linear(n, digits.CLASSES))
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        for _ in range(STEPS):
            batch = sample[torch.randint(len(sample), (128,))]
            optimizer.zero_grad()
            F.cross_entropy(network(batch.images), batch.digits).backward()
            optimizer.step()
    with torch.no_grad():
        return network[:2](sample.images).T.double().numpy()


COSTS = {"noisy copies": cost_of, "trained": trained_cost_of}


def single() -> Iterator[tuple[object, ...]]:
    for name, build in COSTS.items():
        for n in (128, 512, 2048):
            cost, k, ones = build(n), fused_count(n, ALPHA), np.ones(n)
            ours = seconds(lambda cost=cost, k=k: partial_assignment(cost, k))
            start = time.perf_counter()
            plan = partial_coupling(cost, ones, ones, k)
            theirs = time.perf_counter() - start
            gap = cost[partial_assignment(cost, k)].sum() / (plan * cost).sum() - 1
            yield name, n, f"{ours:.4f} s", f"{theirs:.4f} s", f"{theirs / ours:.0f}×", f"{gap:.1e}"


def sweep() -> Iterator[tuple[object, ...]]:
    for name, build in COSTS.items():
        for n in (512, 2048):
            cost = build(n)
            sizes = [fused_count(n, alpha) for alpha in ALPHAS]
            one = seconds(lambda cost=cost, n=n: partial_assignment(cost, fused_count(n, ALPHA)))
            without = seconds(lambda cost=cost, sizes=sizes: partial_assignments(cost, sizes[1:]))
            every = seconds(lambda cost=cost, sizes=sizes: partial_assignments(cost, sizes))
            yield name, n, f"{one:.4f} s", f"{every:.4f} s", f"{every / one:.1f}×", f"{without / one:.1f}×"


def large() -> Iterator[tuple[object, ...]]:
    for name in COSTS:
        command = [sys.executable, "-m", "benchmarks.solvers", name]
        m = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield name, LARGE, f"{m['elapsed']:.2f} s", f"{m['busy']:.2f} s", f"{m['peak']:.0f} MB"


def measure(name: str) -> dict[str, float]:
    """One large problem: time, time of the processor, and the peak of the process, its cost matrix included."""
    torch.set_num_threads(1)
    partial_assignment(np.eye(3), 2)  # loads the compiled code
    cost = COSTS[name](LARGE)
    start, busy = time.perf_counter(), time.process_time()
    partial_assignment(cost, fused_count(LARGE, ALPHA))
    elapsed, busy = time.perf_counter() - start, time.process_time() - busy
    return {"elapsed": elapsed, "busy": busy, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    head = ("costs", "channels")
    print(
        table((*head, "partial_assignment", "POT with a sink", "ratio", "objective gap"), [*single()], align="<>>>>>")
    )
    print()
    print(table((*head, "alpha 0.4", "seven alphas", "ratio", "without alpha 0"), [*sweep()], align="<>>>>>"))
    print()
    print(table((*head, "alpha 0.4", "processor", "peak of the process"), [*large()], align="<>>>>"))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
