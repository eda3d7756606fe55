"""What a network of a frontier costs beside its parameters: operations, and time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..blocks import BlockLayer, to_blocks
from ..core.inputs import Inputs, run
from ..fusing.budget import Stopwatch
from ..fusing.result import Fusion
from ..surgery.layout import in_channels_last

FORMS = ("dense", "blocks", "auto")  # the module, as blocks, and with blocks where these are faster


def operations(model: nn.Module, inputs: Inputs) -> int | None:
    """Floating-point operations of one call; None where PyTorch cannot count them."""
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            run(model, inputs)
    except Exception:  # whatever the code of a model raises where its operations are counted
        return None
    return int(counter.get_total_flops()) or None


@dataclass
class Timer:
    """Times networks against the last model in calls that take turns; each shape once, with convolutions in
    channels-last layout where that may be.

    Attributes:
        last: the last model.
        inputs: what they are called with.
        known: what was measured.
    """

    last: nn.Module
    inputs: Inputs
    known: dict[Hashable, Mapping[str, float]] = field(default_factory=dict)

    @cached_property
    def stopwatch(self) -> Stopwatch:
        return Stopwatch(in_channels_last(self.last, self.inputs), self.inputs)

    def module(self, key: Hashable, model: nn.Module) -> Mapping[str, float]:
        """Form → the time of a network that has one form only."""
        if key not in self.known:
            self.known[key] = dict.fromkeys(FORMS, self.stopwatch.ratio(in_channels_last(model, self.inputs)))
        return self.known[key]

    def fused(self, key: Hashable, fusion: Fusion) -> Mapping[str, float]:
        """Form → the time of a result; a form in which no layer differs from the module takes the module's time."""
        if key not in self.known:
            forms = {}
            if fusion.count.effective < fusion.count.dense:
                found = {"blocks": to_blocks(fusion, self.inputs), "auto": to_blocks(fusion, self.inputs, mode="auto")}
                forms = {form: model for form, model in found.items() if _has_blocks(model)}
            dense = in_channels_last(fusion.model, self.inputs)
            times = self.stopwatch.ratios({"dense": dense, **forms})
            self.known[key] = {form: times.get(form, times["dense"]) for form in FORMS}
        return self.known[key]


def _has_blocks(model: nn.Module) -> bool:
    return any(isinstance(module, BlockLayer) for module in model.modules())
