"""Large models: time and memory by depth and width, and beside the least that a merge of two files must do.

Times are of the processor, on one thread, and every model is measured in a process of its own. With DEVICE set (`make
bench DEVICE=cuda`) the heavy parts are computed there, times are elapsed ones, and a table compares it with the CPU.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.compute import computing_on, moved
from partialfusion.core.modules import named_tensors
from partialfusion.core.text import table
from partialfusion.solvers import Prices, assignment, partial_coupling
from partialfusion_study.networks import GPT, mlp

from .large import allow_torchvision, write
from .solvers import COSTS
from .timing import seconds

DEVICE = os.environ.get("DEVICE") or None
DEPTHS, WIDTH = (6, 12, 24, 48), 128  # of transformers
WIDTHS = (512, 1024, 2048, 4096)  # of networks with two hidden layers
FILES = 512, 8  # width and depth of the transformers that are merged as files
STREAMED = (6, 12, 24)  # layers of those whose memory is measured while they are streamed


def build(kind: str, width: int, depth: int, seed: int) -> tuple[nn.Module, Tensor]:
    """A network with random weights, and an input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "gpt":
            return GPT(width, depth=depth, heads=max(2, width // 64)).eval(), torch.randint(0, 256, (1, 8))
        return mlp(64, *[width] * depth, 10).eval(), torch.randn(2, 64)


def clock() -> float:
    return time.process_time() if DEVICE is None else time.perf_counter()


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = clock()
    found = function()
    return clock() - start, found


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, width: int, depth: int) -> dict[str, float]:
    """Tracing, and fusing at two alphas: seconds, and what the peak is above the models, in MB."""
    torch.set_num_threads(1)
    small, x = build("gpt", 16, 1, 2)
    pf.fuse([small, small], x, alpha=0.4)  # loads what is loaded at the first call
    (ours, x), (theirs, _) = build(kind, width, depth, 0), build(kind, width, depth, 1)
    size = sum(t.numel() * t.element_size() for t in named_tensors(ours).values()) / 2**20
    before = peak_mb()
    trace, blueprint = timed(lambda: pf.trace(theirs, x))
    traced = peak_mb() - before
    full, _ = timed(lambda: pf.fuse([ours, theirs], x, alpha=0.0, blueprint=blueprint, device=DEVICE))
    partial, _ = timed(lambda: pf.fuse([ours, theirs], x, alpha=0.4, blueprint=blueprint, device=DEVICE))
    found = {"size": size, "trace": trace, "full": full, "partial": partial}
    return found | {"traced": traced, "above": peak_mb() - before}


def held(folder: str, align: str) -> dict[str, float]:
    """What `pf.fuse_files` holds at the most above what the process held before, in MB, and its seconds."""
    torch.set_num_threads(1)
    allow_torchvision()
    with tempfile.TemporaryDirectory() as scratch:
        small = [checkpoint(Path(scratch) / str(k), seed=k, width=64, depth=1) for k in range(2)]
        pf.fuse_files(small, Path(scratch) / "out", alpha=0.2, progress=False)  # loads what is loaded at the first call
    before = resident_mb()
    pair, out = [Path(folder) / str(k) for k in range(2)], Path(folder) / f"fused-{align}"
    spent, _ = timed(lambda: pf.fuse_files(pair, out, alpha=0.2, align=align, device=DEVICE, progress=False))
    return {"above": peak_mb() - before, "seconds": spent}


def resident_mb() -> float:
    status = Path("/proc/self/status")  # elsewhere the peak so far is all that is known
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), peak_mb())


def streamed() -> Iterator[tuple[object, ...]]:
    """Memory that `pf.fuse_files` takes, beside the size of the files, by depth and for a large embedding."""
    width, deep = FILES[0], [(f"{n} layers", n, 256) for n in STREAMED]
    for label, depth, words in [*deep, ("4 layers, 100,000 words", 4, 100_000)]:
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(2):
                write(
                    *(Path(folder) / str(seed), "gpt2", seed, None, 10**9),
                    **{"n_embd": width, "n_head": width // 64, "n_layer": depth, "vocab_size": words},
                )
            size = sum(p.stat().st_size for p in Path(folder).glob("*/*.safetensors")) / 2**20
            row: list[object] = [label, f"{size:.0f} MB"]
            for align in ("greedy", "fixed-point"):
                found = elsewhere("held", folder, align)
                row += [f"{found['above']:.0f} MB", f"{found['above'] / size:.2f}", f"{found['seconds']:.1f} s"]
        yield tuple(row)


def elsewhere(*arguments: object) -> dict[str, float]:
    """What `measure` or `held` gives, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", *map(str, arguments)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power of the size that the values grow with, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def grown(kind: str, cases: Sequence[tuple[int, int]], label: str, sizes: Sequence[int]) -> None:
    found = [elsewhere(kind, width, depth) for width, depth in cases]
    rows: list[tuple[object, ...]] = [
        (n, f"{m['size']:.0f} MB", *(f"{m[k]:.2f} s" for k in ("trace", "full", "partial")), f"{m['above']:.0f} MB")
        for n, m in zip(sizes, found, strict=True)
    ]
    powers = [exponent(sizes, [m[k] for m in found]) for k in ("trace", "full", "partial", "above")]
    rows.append(("exponent", "", *(f"{p:.2f}" for p in powers)))
    print(table((label, "one model", "trace", "alpha 0", "alpha 0.4", "peak above both"), rows, align=">>>>>>"))
    print(flush=True)


def averaged(paths: Sequence[Path], out: Path) -> None:
    """The floor: read both files, write their average."""
    first, second = map(load_file, paths)
    save_file({name: (first[name] + second[name]) / 2 for name in first}, out)


def files() -> Iterator[tuple[object, ...]]:
    """Merging two checkpoints of GPT-2's class into one: their average, mergekit where it is installed, and fusions."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = [checkpoint(Path(folder) / f"model{k}", seed=k) for k in range(2)]
        weights, out = [c / "model.safetensors" for c in checkpoints], Path(folder) / "out"
        floor, _ = timed(lambda: averaged(weights, out.with_suffix(".safetensors")))
        yield "plain average, the floor", f"{floor:.2f} s", "1"
        if find_spec("mergekit") is not None:
            merged = mergekit_seconds(checkpoints, Path(folder))
            yield "mergekit, linear", f"{merged:.2f} s", f"{merged / floor:.1f}"
        for alpha in (0.0, 0.4):
            ours, _ = timed(lambda alpha=alpha: fused(checkpoints, out.with_suffix(".safetensors"), alpha))
            yield f"pf.fuse at alpha {alpha:g}, traced and checked", f"{ours:.2f} s", f"{ours / floor:.1f}"
        for align in ("greedy", "fixed-point"):
            streamed, _ = timed(
                lambda align=align: pf.fuse_files(
                    checkpoints, Path(folder) / align, alpha=0.4, align=align, device=DEVICE, progress=False
                )
            )
            yield f"pf.fuse_files at alpha 0.4, {align}", f"{streamed:.2f} s", f"{streamed / floor:.1f}"


def checkpoint(folder: Path, seed: int, width: int = FILES[0], depth: int = FILES[1]) -> Path:
    """A directory with a model of GPT-2's class and random weights."""
    allow_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width, n_layer=depth, n_head=width // 64, vocab_size=256, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def fused(checkpoints: Sequence[Path], out: Path, alpha: float) -> None:
    from transformers import GPT2LMHeadModel

    models = [GPT2LMHeadModel.from_pretrained(folder) for folder in checkpoints]
    batch = {"input_ids": torch.randint(0, 256, (1, 8))}
    pf.save(pf.fuse(models, batch, alpha=alpha, device=DEVICE, progress=False), out)


def mergekit_seconds(checkpoints: Sequence[Path], folder: Path) -> float:
    """The same two, merged by its command."""
    parts = "".join(f"  - model: {path}\n    parameters: {{weight: 0.5}}\n" for path in checkpoints)
    recipe = folder / "merge.yml"
    recipe.write_text(f"models:\n{parts}merge_method: linear\ndtype: float32\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "mergekit.scripts.run_yaml", str(recipe), str(folder / "merged")]
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def solved() -> Iterator[tuple[object, ...]]:
    """One space: our assignment, from nothing and from known prices, beside SciPy's and the network simplex."""
    rng = np.random.default_rng(0)
    for n in (512, 1024, 2048):
        x, y = (rng.normal(size=(n, 4 * n)).astype(np.float32) for _ in range(2))
        costs = {"random weights": np.float64((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T)}
        for name, cost in (costs | {name: make(n) for name, make in COSTS.items()}).items():
            prices = Prices()
            assignment(cost, prices)
            ours = timed(lambda cost=cost: assignment(cost))[0]
            again = timed(lambda cost=cost, prices=prices: assignment(1.001 * cost, prices))[0]
            scipys = timed(lambda cost=cost: linear_sum_assignment(cost))[0]
            row = (name, n, f"{1000 * ours:.1f} ms", f"{scipys / ours:.1f}", f"{scipys / max(again, 1e-6):.0f}")
            simplex = ""
            if n <= 1024:
                masses = np.ones(n)
                simplex = f"{timed(lambda c=cost, a=masses: partial_coupling(c, a, a, len(a)))[0] / ours:.0f}"
            yield *row, simplex


def devices() -> Iterator[tuple[object, ...]]:
    """The products of large spaces on the CPU and on the device."""
    for n in (1024, 2048, 4096, 8192):
        x, y = torch.randn(n, 2048), torch.randn(n, 2048)

        def product(x: Tensor = x, y: Tensor = y) -> Tensor:
            return (moved(x) @ moved(y).T).cpu()

        cpu = seconds(product, repeats=3)
        with computing_on(DEVICE):
            other = seconds(product, repeats=3)
        yield n, f"{cpu:.3f} s", f"{other:.3f} s", f"{cpu / other:.1f}"


def main() -> None:
    print(table(("one space", "channels", "ours", "SciPy", "warm", "POT"), [*solved()], align="<>>>>>"))
    print("\nSciPy, warm, POT: times as fast as SciPy's assignment, the same from known prices, and than POT's.\n")
    grown("mlp", [(n, 2) for n in WIDTHS], "two hidden layers of", WIDTHS)
    grown("gpt", [(WIDTH, n) for n in DEPTHS], f"transformers of width {WIDTH}, layers", DEPTHS)
    label = f"two checkpoints of GPT-2's class, width {FILES[0]}, {FILES[1]} layers"
    print(table((label, "processor" if DEVICE is None else "elapsed", "times the floor"), [*files()], align="<>>"))
    print()
    heads = ("streamed, alpha 0.2", "both files", "greedy", "times", "time", "default", "times", "time")
    print(table(heads, [*streamed()], align="<>>>>>>>"))
    if DEVICE is not None:
        print()
        print(table(("channels", "cpu", DEVICE, "times as fast"), [*devices()], align=">>>>"))
        print(torch.cuda.get_device_name() if DEVICE.startswith("cuda") else DEVICE, torch.__version__)


if __name__ == "__main__":
    kind, first, second = sys.argv[1:]
    print(json.dumps(held(first, second) if kind == "held" else measure(kind, int(first), int(second))))
