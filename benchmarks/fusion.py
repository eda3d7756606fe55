"""Time and memory of whole fusions; every network in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from functools import partial

import torch
from torch import nn

import partialfusion as pf
from partialfusion.blueprint import trace_labels
from partialfusion.core.inputs import Inputs
from partialfusion.core.modules import named_tensors
from partialfusion.core.text import table
from partialfusion.surgery import apply
from partialfusion_study.networks import ResNet18, mlp

from .timing import seconds

CASES = {
    "MLP 784-100-100-100-10, one core": ("mlp", 1),
    "ResNet-18, width 64, two cores": ("resnet", 2),
}


def build(kind: str, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (mlp(784, 100, 100, 100, 10) if kind == "mlp" else ResNet18()).eval()


def size_mb(model: nn.Module) -> float:
    return sum(t.numel() * t.element_size() for t in named_tensors(model).values()) / 2**20


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    models = [build(kind, 0), build(kind, 1)]
    x = torch.randn(2, 784) if kind == "mlp" else torch.randn(2, 3, 32, 32)
    tiny = build("mlp", 2)
    pf.fuse([tiny, tiny], torch.randn(2, 784))  # loads what torch.export loads at its first call
    unchecked = pf.trace(models[1], x, check=False)  # the checks would raise the peak that is measured here
    before = peak_mb()
    fused = pf.fuse(models, x, alpha=0.4, features="weights", blueprint=unchecked)
    above = peak_mb() - before - size_mb(fused.model)
    start = time.perf_counter()
    blueprint = pf.trace(models[1], x)
    traced = time.perf_counter() - start
    total = seconds(lambda: pf.fuse(models, x, alpha=0.4, features="weights", blueprint=blueprint))
    return {
        "trace": traced,
        "fuse": total,
        "retrace": seconds(lambda: trace_labels(fused.model, Inputs.of(x))),
        "above": above,
        "sweeps": fused.plan.sweeps,
        "converged": fused.plan.converged,
    }


def main() -> None:
    rows = []
    for label, (kind, threads) in CASES.items():
        command = [sys.executable, "-m", "benchmarks.fusion", kind, str(threads)]
        m = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        state = f"{m['sweeps']} sweeps, {'converged' if m['converged'] else 'not converged'}"
        rows.append(
            (
                label,
                f"{m['trace']:.3f} s",
                f"{m['fuse']:.3f} s",
                f"{m['fuse'] - m['retrace']:.3f} s",
                state,
                f"{m['above']:.0f} MB",
            )
        )
    header = ("alpha=0.4, weight features, fixed point", "trace", "fuse", "without tracing the result", "alignment")
    print(table((*header, "memory above three models"), rows, align="<>>>>>"))
    print()
    print(table(("apply a plan: ResNet-18 of width", "parameters", "time", "per parameter"), applied(), align=">>>>"))


def applied() -> list[tuple[object, ...]]:
    """Applying a plan that keeps the widths, so that nothing is traced: the cost per parameter is constant."""
    rows = []
    for width in (16, 32, 64, 128):
        models = [ResNet18(width).eval() for _ in range(2)]
        x = torch.randn(2, 3, 32, 32)
        blueprint = pf.trace(models[1], x, check=False)
        plan = pf.fuse(models, x, method="average", blueprint=blueprint).plan
        elapsed = seconds(partial(apply, models, [blueprint] * 2, plan, (x,)))
        count = sum(p.numel() for p in models[0].parameters())
        rows.append((width, f"{count:,}", f"{elapsed:.3f} s", f"{1e9 * elapsed / count:.1f} ns"))
    return rows


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
