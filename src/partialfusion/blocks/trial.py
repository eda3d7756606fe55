"""Trying block forms on real inputs: does the model call the layer as a module, and which form is faster?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Two forms are timed in as many turns as fit into the time, within these bounds.
SECONDS, FEWEST, MOST = 0.3, 9, 101


class Probe(nn.Module):
    """Stands in for a dense layer while the model runs, counts its calls and can time both forms on its inputs.

    Attributes:
        calls: how often the model called the layer.
        dense_seconds, block_seconds: of all calls together.
    """

    def __init__(self, dense: nn.Module, block: nn.Module, *, timed: bool) -> None:
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
        """Whatever else the model's code wants of the layer, the dense one has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("dense"), name)


def paired_times(
    first: Callable[[], object], second: Callable[[], object], device: torch.device
) -> tuple[float, float]:
    """Seconds that two functions take, called in turns so that whatever else the machine does meets both alike.

    The lower quartile of the times: other work makes calls slower, never faster, and on a busy machine most of them.
    Where PyTorch computes in one thread, that thread's own time counts, which other work hardly touches.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter

    def seconds(function: Callable[[], object]) -> float:
        start = clock()
        function()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return clock() - start

    for function in (first, second):
        seconds(function)
    times: list[tuple[float, float]] = []
    start = time.perf_counter()
    while len(times) < FEWEST or (len(times) < MOST and time.perf_counter() - start < SECONDS):
        times.append((seconds(first), seconds(second)))
    quarter = len(times) // 4
    return sorted(a for a, _ in times)[quarter], sorted(b for _, b in times)[quarter]
