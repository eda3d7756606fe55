"""The speed of a fused model, dense and as blocks, compared with the models it replaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ..core.inputs import Inputs
from ..core.modules import at_rest
from ..core.text import table
from ..core.timing import interleaved_times, medians
from ..fusing.budget import faster_layout
from .candidates import Fused
from .convert import block_report, to_blocks


@dataclass(frozen=True)
class Speed:
    """The speed of one form of a network.

    Attributes:
        form: "single", "ensemble", "dense", "blocks" or "auto".
        milliseconds: median wall-clock time of a forward pass.
        ratio: that time relative to the single model's.
        processor_ratio: the same ratio for the processor time of the calling thread.
        parameters: the number of parameters that it holds.
    """

    form: str
    milliseconds: float
    ratio: float
    processor_ratio: float
    parameters: int


@dataclass(frozen=True, repr=False)
class Comparison:
    """Speeds measured in one run. Prints as a table.

    Attributes:
        speeds: the speeds of all forms.
        rounds: how often each form was called.
        threads: the number of threads that PyTorch used.
        block_layers: the number of layers that "auto" holds as blocks.
        layers: the number of layers that have zero blocks.
        channels_last: whether one model, the ensemble and the dense module were in channels-last layout, because it is
            faster here. Blocks of convolutions are in it on every CPU.
    """

    speeds: tuple[Speed, ...]
    rounds: int
    threads: int
    block_layers: int
    layers: int
    channels_last: bool = False

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = [
            (s.form, f"{s.milliseconds:.3f}", f"{s.ratio:.2f}", f"{s.processor_ratio:.2f}", f"{s.parameters:,}")
            for s in self.speeds
        ]
        header = ("form", "ms", "× single", "processor", "parameters")
        note = (
            f"medians of {self.rounds} interleaved calls with {self.threads} thread(s); auto holds "
            f"{self.block_layers} of {self.layers} layers with zero blocks as blocks"
        )
        if self.channels_last:
            note += "; all convolutions in channels-last layout, which was faster"
        ratios = {s.form: s.ratio for s in self.speeds}
        slower = [form for form in ("dense", "blocks", "auto") if ratios[form] > ratios.get("ensemble", math.inf)]
        if slower:
            note += f"\nSLOWER than the models one by one: {', '.join(slower)}"
        return f"{table(header, rows, align='<>>>>')}\n{note}"


def compare(models: Sequence[nn.Module], fused: Fused, example_inputs: Any, *, seconds: float = 10.0) -> Comparison:
    """Time one model, all of them, and their fusion: dense, as blocks, and with blocks where these are faster.

    Args:
        models: the sources, or other models with their shapes.
        fused: what `fuse` returned.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs, with the batch
            size to measure.
        seconds: how long to measure, in addition to the timing of single layers for "auto".
    """
    inputs = Inputs.of(example_inputs).on_device_of(models[0])
    in_layout = faster_layout(models[-1], inputs)
    given, models = models, [in_layout(model) for model in models]
    first = models[0]
    auto = to_blocks(fused, inputs, mode="auto")
    forms = {"dense": in_layout(fused.model), "blocks": to_blocks(fused, inputs), "auto": auto}
    functions: dict[str, Callable[[], object]] = {"single": partial(first, *inputs.args, **inputs.kwargs)}
    if len(models) > 1:
        functions["ensemble"] = lambda: [model(*inputs.args, **inputs.kwargs) for model in models]
    functions |= {name: partial(model, *inputs.args, **inputs.kwargs) for name, model in forms.items()}
    with at_rest(*models, *forms.values()), torch.no_grad():
        times = interleaved_times(functions, seconds=seconds, fewest=9, device=next(first.parameters()).device)
    middle = medians(times)
    wall, processor = middle["single"]
    sizes = {"single": _size(first), "ensemble": sum(map(_size, models)), **{n: _size(m) for n, m in forms.items()}}
    speeds = tuple(
        Speed(name, 1000 * found[0], found[0] / wall, found[1] / max(processor, 1e-9), sizes[name])
        for name, found in middle.items()
    )
    verdicts = [v for v in block_report(auto).values() if v.kept is not None]
    return Comparison(
        speeds,
        len(times["single"]),
        torch.get_num_threads(),
        sum(v.blocks for v in verdicts),
        len(verdicts),
        channels_last=first is not given[0],
    )


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
