"""Spaces matched in threads, beside the same spaces one after the other.

`python -m benchmarks threads` fuses two networks both ways, in turns and in one process, prints elapsed and processor
time in threads relative to one by one, and says whether the results are the same bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.cluster import Here, Tasks, Threads
from partialfusion.core.text import table
from partialfusion.fusing.sources import Sources

from .large import allow_torchvision

ROUNDS = 3


def gpt2() -> tuple[nn.Module, Tensor]:
    """GPT-2 small with random weights."""
    allow_torchvision()
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    return model.eval(), torch.randint(0, 1000, (1, 8))


def resnet50() -> tuple[nn.Module, Tensor]:
    """torchvision's ResNet-50 with random weights."""
    allow_torchvision()
    from torchvision.models import resnet50 as build

    return build(weights=None).eval(), torch.randn(1, 3, 64, 64)


def once(call: Callable[[], pf.Fusion], tasks: Tasks) -> tuple[float, float, pf.Fusion]:
    """Elapsed and processor seconds of a fusion whose spaces are matched there, and its result."""
    before, Sources.tasks = Sources.tasks, tasks
    elapsed, processor = time.perf_counter(), time.process_time()
    try:
        result = call()
    finally:
        Sources.tasks = before
    return time.perf_counter() - elapsed, time.process_time() - processor, result


def same(one: pf.Fusion, other: pf.Fusion) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def row(name: str, build: Callable[[], tuple[nn.Module, Tensor]], alpha: float) -> tuple[object, ...]:
    """The cells of one row: seconds one by one, ratios of the medians, and whether the results are the same."""
    torch.manual_seed(0)
    (ours, x), (theirs, _) = build(), build()
    blueprint = pf.trace(theirs, x)
    call = partial(pf.fuse, [ours, theirs], x, alpha=alpha, blueprint=blueprint, progress=False)
    once(call, Here())  # loads what is loaded at the first call
    found = [(once(call, Here()), once(call, Threads())) for _ in range(ROUNDS)]
    (elapsed, in_threads), (processor, also) = (
        [median(turn[way][clock] for turn in found) for way in range(2)] for clock in range(2)
    )
    equal = "yes" if all(same(a[2], b[2]) for a, b in found) else "no"
    return name, alpha, f"{elapsed:.1f}", f"{in_threads / elapsed:.2f}", f"{also / processor:.2f}", equal


def main() -> None:
    print(f"{torch.get_num_threads()} threads, {ROUNDS} rounds, ratios of the medians\n")
    models = {"GPT-2 small": gpt2, "ResNet-50": resnet50}
    rows = [row(name, build, alpha) for name, build in models.items() for alpha in (0.0, 0.4)]
    print(table(("models", "alpha", "one by one, s", "elapsed", "processor", "same result"), rows))


if __name__ == "__main__":
    main()
