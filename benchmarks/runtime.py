"""Wall-clock time of a fused model, dense and in block form, relative to one of the two models it is made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from partialfusion.blocks import block_report, to_blocks
from partialfusion.core.text import table
from partialfusion.core.timing import interleaved_times, medians
from partialfusion_study.cells.clocks import fused_by_index
from partialfusion_study.networks import ResNet18, mlp

SECONDS, FEWEST, MOST = 12.0, 9, 2000
BATCH = 64


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


if __name__ == "__main__":
    main()
