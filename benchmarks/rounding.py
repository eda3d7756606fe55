"""Channels in multiples: the time of a ResNet-18 with the widths of a fusion, dense and as blocks, by `round_to`.

Times depend on widths alone, so nothing is matched: the networks have random weights and the zero blocks of a fusion.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from functools import partial
from statistics import quantiles

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from partialfusion.blocks.layer import row_groups
from partialfusion.blocks.layers import BLOCK_FORMS
from partialfusion.core.text import table
from partialfusion.core.timing import Times, interleaved_times
from partialfusion.fusing.rounding import Grid
from partialfusion_study.networks import ResNet18

ALPHAS, MULTIPLES = (0.25, 0.375, 0.4, 0.5), (1, 8, 16, 32)
SECONDS, FEWEST, MOST = 30.0, 9, 200


def written_by(width: int, alpha: float, multiple: int) -> np.ndarray:
    """(channels × 2) which of two networks write the channels: isolated ones of A, fused ones, isolated ones of B."""
    isolated = round(Grid((width, width), multiple=multiple).alpha(alpha) * width)
    parts = ((True, False), (True, True), (False, True))
    return np.repeat(np.array(parts), (isolated, width - isolated, isolated), axis=0)


def with_blocks(model: nn.Module, alpha: float, multiple: int) -> nn.Module:
    """A copy with the widths of a fusion, its convolutions as blocks."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                shape = child.out_channels, child.in_channels
                rows, cols = (written_by(n, alpha, multiple) if n != 3 else np.ones((3, 2), bool) for n in shape)
                settings = child.kernel_size, child.stride, child.padding
                wide = nn.Conv2d(len(cols), len(rows), *settings, bias=False).to(memory_format=torch.channels_last)
                groups = row_groups(rows, cols)
                module.add_module(name, wide if len(groups) == 1 else BLOCK_FORMS[nn.Conv2d](wide, groups))
            elif isinstance(child, nn.BatchNorm2d):
                module.add_module(name, nn.BatchNorm2d(len(written_by(child.num_features, alpha, multiple))))
            elif isinstance(child, nn.Linear):
                inputs = len(written_by(child.in_features, alpha, multiple))
                module.add_module(name, nn.Linear(inputs, child.out_features))
    return model.eval()


def densely(model: nn.Module) -> nn.Module:
    """A copy with dense layers, and zeros outside the blocks."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, BLOCK_FORMS[nn.Conv2d]):
                module.add_module(name, child.dense().to(memory_format=torch.channels_last))  # type: ignore[operator]
    return model


def operations(model: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x[:1])
    return int(counter.get_total_flops())


def spread(times: Times, name: str, base: str) -> str:
    """The median of the ratios to `base` in the same round, and their quartiles; processor time of one thread."""
    ratios = [call / own for (_, call), (_, own) in zip(times[name], times[base], strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def measure(alpha: float, given: argparse.Namespace) -> list[tuple[str, ...]]:
    """The rows of one alpha; networks of all multiples, one parent and both parents are called in turns."""
    torch.manual_seed(0)
    x = torch.randn(given.batch, 3, 32, 32)
    parents = [ResNet18(given.width).eval().to(memory_format=torch.channels_last) for _ in range(2)]
    functions = {"single": partial(parents[0], x), "both": lambda: [parent(x) for parent in parents]}
    counted = {}
    with torch.no_grad():
        single = operations(parents[0], x)
        for multiple in given.multiples:
            blocks = with_blocks(parents[0], alpha, multiple)
            dense = densely(blocks)
            assert torch.allclose(dense(x[:1]), blocks(x[:1]), atol=1e-4)
            functions |= {f"{multiple} dense": partial(dense, x), f"{multiple} blocks": partial(blocks, x)}
            counted[multiple] = [operations(model, x) / single for model in (dense, blocks)]
        times = interleaved_times(functions, seconds=given.seconds, fewest=FEWEST, most=MOST)
    return [
        (
            f"{alpha:g}",
            str(multiple),
            ", ".join(f"{ratio:.2f}" for ratio in counted[multiple]),
            *(spread(times, f"{multiple} {form}", "single") for form in ("dense", "blocks")),
            spread(times, "both", "single"),
            str(len(times["single"])),
        )
        for multiple in given.multiples
    ]


def main(arguments: Sequence[str] = ()) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--alphas", type=float, nargs="+", default=ALPHAS)
    options.add_argument("--multiples", type=int, nargs="+", default=MULTIPLES)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--seconds", type=float, default=SECONDS)
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    header = ("alpha", "round_to", "operations: dense, blocks", "dense", "blocks", "both parents", "rounds")
    for alpha in given.alphas:
        print(table(header, measure(alpha, given), align="<" + ">" * 6), flush=True)
    print(
        f"\nResNet-18 of width {given.width}, batch {given.batch}, 32×32 images, channels-last, one thread: processor "
        "time relative to one parent, medians and quartiles of calls in turns."
    )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
