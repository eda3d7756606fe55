"""The time of a fused model, dense and in block form, relative to one of the two models it is made of.

`python -m benchmarks runtime` runs networks of many widths in PyTorch, `python -m benchmarks.runtime engines` a
ResNet-18 in PyTorch, compiled by torch.compile, and in ONNX Runtime, all in turns.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from partialfusion import export_onnx
from partialfusion.blocks import block_report, to_blocks
from partialfusion.core.inputs import Inputs
from partialfusion.core.text import table
from partialfusion.core.timing import interleaved_times, medians, paired_quartiles
from partialfusion.surgery.layout import in_channels_last
from partialfusion_study.cells.clocks import fused_by_index
from partialfusion_study.networks import ResNet18, mlp

SECONDS, FEWEST, MOST = 12.0, 9, 2000
BATCH = 64
ENGINES = ("PyTorch", "channels-last", "compiled", "ONNX Runtime")


def convolutions(width: int, kernel: int) -> nn.Module:
    """Three hidden convolutions of one width."""
    layers: list[nn.Module] = []
    for n in (3, width, width):
        layers += [nn.Conv2d(n, width, kernel, padding=kernel // 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def multiplications(model: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x)
    return counter.get_total_flops() // 2


def megabytes(model: nn.Module) -> float:
    return sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20


def measure(build: Callable[[], nn.Module], x: Tensor) -> tuple[str, ...]:
    """The cells of one row."""
    with torch.no_grad():
        models = [build().eval() for _ in range(2)]
        fused = fused_by_index(models, x, 0.5)
        dense, block, auto = fused.model, to_blocks(fused), to_blocks(fused, x, mode="auto")
        times = interleaved_times(
            {
                "single": lambda: models[0](x),
                "ensemble": lambda: (models[0](x) + models[1](x)) / 2,
                "dense": lambda: dense(x),
                "blocks": lambda: block(x),
                "auto": lambda: auto(x),
            },
            seconds=SECONDS,
            fewest=FEWEST,
            most=MOST,
        )
        single = multiplications(models[0], x)
        counted = [multiplications(m, x) / single for m in (dense, block)]
        wall, work = ({name: found[k] for name, found in medians(times).items()} for k in (0, 1))
        forms = [c for c in block_report(auto).values() if c.kept is not None]
        return (
            f"{1e3 * wall['single']:.2f} ms ({1e3 * work['single']:.2f})",
            *(f"{wall[k] / wall['single']:.2f} ({work[k] / work['single']:.2f})" for k in times if k != "single"),
            *(f"{ratio:.2f}" for ratio in counted),
            " / ".join(f"{megabytes(m):.4g}" for m in (models[0], dense, block)),
            f"{sum(c.blocks for c in forms)} of {len(forms)}",
            str(len(times["single"])),
        )


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        f"MLP 784-{w}-{w}-{w}-10, batch {BATCH}": (lambda w=w: mlp(784, w, w, w, 10), (BATCH, 784))
        for w in (100, 500, 1000, 2000, 3000, 8000)
    }
    cases |= {
        f"three {k}×{k} convolutions of width {w}, 16 × {s}×{s}": (lambda w=w, k=k: convolutions(w, k), (16, 3, s, s))
        for k, w, s in ((3, 64, 32), (3, 128, 16), (3, 256, 16), (3, 512, 8), (1, 128, 16), (1, 512, 8))
    }
    cases["ResNet-18 of width 64, 16 × 32×32"] = ResNet18, (16, 3, 32, 32)
    rows = []
    for label, (build, shape) in cases.items():
        rows.append((label, *measure(build, torch.randn(shape))))
    header = ("alpha=0.5, one thread", "single", "ensemble", "dense", "blocks", "auto", "MACs dense", "MACs blocks")
    header = (*header, "MB single / dense / blocks", "layers as blocks in auto", "rounds")
    print(table(header, rows, align="<" + ">" * 10))
    print("\nMedians relative to the single model's, all taken in turns: wall-clock time, in brackets processor time.")


def in_onnx_runtime(model: nn.Module, x: Tensor, folder: Path, name: str) -> Callable[[], object]:
    """A call of a model that ONNX Runtime runs in the calling thread."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    path = export_onnx(model, x[:2], folder / f"{name}.onnx")
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {session.get_inputs()[0].name: x.numpy()})


def _one_by_one(functions: Sequence[Callable[[], object]]) -> None:
    for function in functions:
        function()


def measure_engines(alpha: float, batch: int, given: argparse.Namespace) -> list[tuple[str, ...]]:
    """A row for each engine: one parent, both, and their fusion, as ratios to one parent in PyTorch, all in turns.

    PyTorch is measured in its usual memory layout and in channels-last, what is compiled in channels-last.
    """
    torch.manual_seed(0)
    torch.compiler.reset()
    x = torch.randn(batch, 3, 32, 32)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        parents = [ResNet18(given.width).eval() for _ in range(2)]
        fused = fused_by_index(parents, x, alpha, 16)
        dense, block, auto = fused.model, to_blocks(fused, x), to_blocks(fused, x, mode="auto")
        models = {"single": parents[0], "other": parents[1], "dense": dense, "blocks": block}
        functions: dict[str, Callable[[], object]] = {"PyTorch auto": partial(auto, x)}
        for name, model in models.items():
            last = model if name == "blocks" else in_channels_last(model, Inputs.of(x))
            functions[f"channels-last {name}"] = partial(last, x)
            functions[f"ONNX Runtime {name}"] = in_onnx_runtime(model, x, Path(folder), name)
            if name != "blocks":
                functions[f"PyTorch {name}"] = partial(model, x)
            if name != "other":
                compiled = torch.compile(last, dynamic=False)
                assert torch.allclose(compiled(x), model(x), atol=1e-3)
                functions[f"compiled {name}"] = partial(compiled, x)
        for engine in ENGINES:
            if f"{engine} other" in functions:
                pair = functions[f"{engine} single"], functions.pop(f"{engine} other")
                functions[f"{engine} both"] = partial(_one_by_one, pair)
        times = interleaved_times(functions, seconds=given.seconds, fewest=given.rounds, most=MOST)
        found = paired_quartiles(times, "PyTorch single", torch.device("cpu"))
        counted = [multiplications(m, x[:1]) / multiplications(parents[0], x[:1]) for m in (dense, block)]
    report = block_report(auto)
    forms = f"{report.form} ({'slower' if report.slower else 'no slower'} than both)"

    def cell(engine: str, name: str) -> str:
        if (engine, name) == ("PyTorch", "single"):
            return "1"
        low, middle, high = found.get(f"{engine} {name}", (0.0, 0.0, 0.0))
        return f"{middle:.2f} ({low:.2f} to {high:.2f})" if middle else ""

    return [
        (
            f"{alpha:g}",
            str(batch),
            engine,
            *(cell(engine, name) for name in ("single", "both", "dense", "blocks", "auto")),
            ", ".join(f"{ratio:.2f}" for ratio in counted) if engine == "PyTorch" else "",
            forms if engine == "PyTorch" else "",
            str(len(times["PyTorch single"])),
        )
        for engine in ENGINES
    ]


def engines(arguments: Sequence[str] = ()) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--alphas", type=float, nargs="+", default=(0.25, 0.5))
    options.add_argument("--batches", type=int, nargs="+", default=(8, 32))
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--rounds", type=int, default=FEWEST)
    options.add_argument("--seconds", type=float, default=0.0)
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    header = ("alpha", "batch", "engine", "one parent", "both", "dense", "blocks", "auto", "multiplications")
    header = (*header, "auto is", "rounds")
    for batch in given.batches:
        for alpha in given.alphas:
            print(table(header, measure_engines(alpha, batch, given), align="<" + ">" * 10), flush=True)
    print(
        f"\nResNet-18 of width {given.width}, 32×32 images, one thread, parts of 16 channels.\n"
        "Processor time relative to one parent in PyTorch's usual layout, medians and quartiles of calls in turns.\n"
        "The multiplications are those of dense and blocks."
    )


if __name__ == "__main__":
    import sys

    engines(sys.argv[2:]) if sys.argv[1:2] == ["engines"] else main()
