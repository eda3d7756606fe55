"""Interleaved timing: functions are called alternately, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

Times = dict[str, list[tuple[float, float]]]  # name → wall-clock time and processor time of every call, in seconds

# How long the two forms of a layer are timed, and the least and the greatest number of rounds.
SECONDS, FEWEST, MOST = 0.3, 9, 101


def interleaved_times(
    functions: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    fewest: int = 3,
    most: int = 2000,
    device: torch.device | None = None,
) -> Times:
    """Call functions one after the other, round after round, after one call of each to warm up.

    Args:
        functions: name → function to time.
        seconds: how long to go on.
        fewest: the least number of rounds, however long they take.
        most: the greatest number of rounds, however short they are.
        device: the device to synchronise after every call; the CPU unless given.

    Returns:
        Name → wall-clock time and processor time of the calling thread, in seconds, for every round.
    """

    def synchronise() -> None:
        if device is not None and device.type != "cpu":
            torch.accelerator.synchronize(device)

    times: Times = {name: [] for name in functions}
    for function in functions.values():
        function()
    synchronise()
    begin, rounds = time.perf_counter(), 0
    while rounds < fewest or (rounds < most and time.perf_counter() - begin < seconds):
        rounds += 1
        for name, function in functions.items():
            wall, processor = time.perf_counter(), time.thread_time()
            function()
            synchronise()
            times[name].append((time.perf_counter() - wall, time.thread_time() - processor))
    return times


def medians(times: Times) -> dict[str, tuple[float, float]]:
    """Name → median wall-clock time and median processor time."""
    return {
        name: (median(wall for wall, _ in found), median(processor for _, processor in found))
        for name, found in times.items()
    }


def paired_times(dense: Callable[[], object], block: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds that the two forms of a layer take: the lower quartiles of interleaved calls.

    Other load makes calls slower, never faster, and on a busy machine most of them. Where PyTorch computes in one
    thread, the processor time of that thread counts, which other load hardly affects.
    """
    functions = {"dense": dense, "block": block}
    times = interleaved_times(functions, seconds=SECONDS, fewest=FEWEST, most=MOST, device=device)
    clock = 1 if device.type == "cpu" and torch.get_num_threads() == 1 else 0

    def lower_quartile(name: str) -> float:
        return sorted(call[clock] for call in times[name])[len(times[name]) // 4]

    return lower_quartile("dense"), lower_quartile("block")


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
