"""Channels in multiples: the time of a fused ResNet-18, dense, as blocks and auto, by `round_to` and alpha."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from statistics import quantiles

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from partialfusion.blocks import to_blocks
from partialfusion.core.inputs import Inputs
from partialfusion.core.text import table
from partialfusion.core.timing import Times, interleaved_times
from partialfusion.surgery.layout import in_channels_last
from partialfusion_study.cells.clocks import fused_by_index
from partialfusion_study.networks import ResNet18

ALPHAS = (0.25, 0.375, 0.4, 0.5)
MULTIPLES = (1, 8, 16, 32)
SECONDS, FEWEST, MOST = 60.0, 7, 200
FORMS = ("dense", "blocks", "auto")


def operations(model: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x)
    return int(counter.get_total_flops())


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def spread(times: Times, name: str, base: str) -> str:
    """The median of the ratios to `base` in the same round, and their quartiles; processor time of one thread."""
    ratios = [call / own for (_, call), (_, own) in zip(times[name], times[base], strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def measure(alpha: float, multiples: Sequence[int], given: argparse.Namespace) -> list[tuple[str, ...]]:
    """The rows of one alpha; results of all multiples, one parent and both parents are called in turns."""
    torch.manual_seed(0)
    x = torch.randn(given.batch, 3, 32, 32)
    inputs = Inputs.of(x)
    models = [ResNet18(given.width).eval() for _ in range(2)]
    laid_out = [in_channels_last(model, inputs) for model in models]
    functions: dict[str, Callable[[], object]] = {
        "single": partial(laid_out[-1], x),
        "both": lambda: [model(x) for model in laid_out],
        "single as it is": partial(models[-1], x),
    }
    counted = {}
    with torch.no_grad():
        single = operations(models[-1], x)
        for multiple in multiples:
            result = fused_by_index(models, x[:2], alpha, multiple)  # times depend on widths, not on what is matched
            forms = {"dense": in_channels_last(result.model, inputs), "blocks": to_blocks(result, x)}
            if "auto" in given.forms:
                forms["auto"] = to_blocks(result, x, mode="auto")
            forms["dense as it is"] = result.model
            functions |= {f"{multiple} {form}": partial(model, x) for form, model in forms.items()}
            counted[multiple] = [operations(forms[form], x) / single for form in ("dense", "blocks")]
            counted[multiple] += [parameters(forms[form]) / parameters(models[-1]) for form in ("dense", "blocks")]
        times = interleaved_times(functions, seconds=given.seconds, fewest=FEWEST, most=MOST)
    rows = []
    for multiple in multiples:
        dense, blocks, held, effective = counted[multiple]
        rows.append(
            (
                f"{alpha:g}",
                str(multiple),
                f"{dense:.2f}, {blocks:.2f}",
                f"{held:.2f}, {effective:.2f}",
                *(spread(times, f"{multiple} {form}", "single") for form in given.forms),
                spread(times, f"{multiple} dense as it is", "single as it is"),
                spread(times, "both", "single"),
                str(len(times["single"])),
            )
        )
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--alphas", type=float, nargs="+", default=ALPHAS)
    options.add_argument("--multiples", type=int, nargs="+", default=MULTIPLES)
    options.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--seconds", type=float, default=SECONDS)
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    header = ("alpha", "round_to", "operations", "parameters", *given.forms)
    header = (*header, "dense, not channels-last", "both parents", "rounds")
    for alpha in given.alphas:
        rows = measure(alpha, given.multiples, given)
        print(table(header, rows, align="<" + ">" * 10), flush=True)
    print(
        f"\nResNet-18 of width {given.width}, batch {given.batch}, 32×32 images, one thread: processor time relative "
        "to one parent, medians and quartiles of calls in turns. Operations and parameters: dense and as blocks, "
        "relative to one parent. All networks in channels-last layout but for the one column that says otherwise."
    )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
