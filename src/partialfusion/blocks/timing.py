"""The two forms of a layer, timed while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..core.timing import interleaved_times, lower_quartiles

# How long the two forms of a layer are timed, and the least and the greatest number of rounds.
SECONDS, FEWEST, MOST = 0.3, 9, 101


def paired_times(dense: Callable[[], object], block: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds that the two forms of a layer take: the lower quartiles of interleaved calls."""
    functions = {"dense": dense, "block": block}
    times = interleaved_times(functions, seconds=SECONDS, fewest=FEWEST, most=MOST, device=device)
    found = lower_quartiles(times, device)
    return found["dense"], found["block"]


class TimedLayer(nn.Module):
    """Stands in for a dense layer while the model runs: counts its calls and can time both forms on its inputs.

    Attributes:
        calls: how often the model called the layer.
        dense_seconds, block_seconds: time of the two forms for all calls together.
    """

    def __init__(self, dense: nn.Module, block: nn.Module, *, timed: bool) -> None:
        """Wrap a layer.

        Args:
            dense: the layer of the model, which computes the output.
            block: its block form.
            timed: time both forms once for every shape, layout and type of input; otherwise calls are only counted.
        """
        super().__init__()
        self.dense, self.block, self.timed = dense, block, timed
        self.calls, self.dense_seconds, self.block_seconds = 0, 0.0, 0.0
        self.known: dict[object, tuple[float, float]] = {}

    def forward(self, input: Tensor) -> Any:
        self.calls += 1
        if self.timed:
            kind = input.shape, input.stride(), input.dtype
            if kind not in self.known:
                self.known[kind] = paired_times(lambda: self.dense(input), lambda: self.block(input), input.device)
            dense, block = self.known[kind]
            self.dense_seconds += dense
            self.block_seconds += block
        return self.dense(input)

    def __getattr__(self, name: str) -> Any:
        """Any other attribute that the model's code reads is the dense layer's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("dense"), name)
