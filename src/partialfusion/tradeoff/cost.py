"""What a network of a frontier costs beside its parameters: operations, and time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from ..blocks import BlockLayer, to_blocks
from ..core.inputs import Inputs, run
from ..core.modules import first_line
from ..core.operations import counting
from ..fusing.budget import Stopwatch, faster_layout
from ..fusing.result import Fusion

log = logging.getLogger(__name__)

FORMS = ("dense", "blocks", "auto")  # the module, as blocks, and with blocks where these are faster


def operations(model: nn.Module, inputs: Inputs) -> int | None:
    """Floating-point operations of one call; None, with a warning, where PyTorch cannot count them."""
    try:
        with counting(model) as counter:
            run(model, inputs)
    except Exception as error:  # whatever the code of a model raises where its operations are counted
        log.warning("the operations of %s cannot be counted (%s)", type(model).__name__, first_line(error))
        return None
    found = int(counter.get_total_flops())
    if not found:
        log.warning("PyTorch counts no operations in %s: its frontier has none", type(model).__name__)
    return found or None


@dataclass
class Timer:
    """Times networks against the last model in calls that take turns; each shape once, with convolutions in the memory
    layout in which the last model is faster. Blocks of convolutions are in channels-last layout on every CPU.

    Attributes:
        last: the last model.
        inputs: what they are called with.
        known: what was measured.
    """

    last: nn.Module
    inputs: Inputs
    known: dict[Hashable, Mapping[str, float]] = field(default_factory=dict)

    @cached_property
    def in_layout(self) -> Callable[[nn.Module], nn.Module]:
        return faster_layout(self.last, self.inputs)

    @cached_property
    def stopwatch(self) -> Stopwatch:
        return Stopwatch(self.in_layout(self.last), self.inputs)

    def module(self, key: Hashable, model: nn.Module) -> Mapping[str, float]:
        """Form → the time of a network that has one form only."""
        if key not in self.known:
            self.known[key] = dict.fromkeys(FORMS, self.stopwatch.ratio(self.in_layout(model)))
        return self.known[key]

    def fused(self, key: Hashable, fusion: Fusion) -> Mapping[str, float]:
        """Form → the time of a result; a form in which no layer differs from the module takes the module's time."""
        if key not in self.known:
            forms = {}
            if fusion.count.effective < fusion.count.dense:
                found = {"blocks": to_blocks(fusion, self.inputs), "auto": to_blocks(fusion, self.inputs, mode="auto")}
                forms = {form: model for form, model in found.items() if _has_blocks(model)}
            times = self.stopwatch.ratios({"dense": self.in_layout(fusion.model), **forms})
            self.known[key] = {form: times.get(form, times["dense"]) for form in FORMS}
        return self.known[key]


def _has_blocks(model: nn.Module) -> bool:
    return any(isinstance(module, BlockLayer) for module in model.modules())
