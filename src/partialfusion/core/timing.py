"""Interleaved timing: functions are called alternately, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles

import torch

Times = dict[str, list[tuple[float, float]]]  # name → wall-clock time and processor time of every call, in seconds


def interleaved_times(
    functions: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    fewest: int = 3,
    most: int = 2000,
    device: torch.device | None = None,
) -> Times:
    """Call functions one after the other, round after round, after one call of each to warm up.

    Every round has another order, for what ran before a call leaves its traces in the caches.

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
    order, shuffle = list(functions.items()), random.Random(0).shuffle
    begin, rounds = time.perf_counter(), 0
    while rounds < fewest or (rounds < most and time.perf_counter() - begin < seconds):
        rounds += 1
        shuffle(order)
        for name, function in order:
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


def paired_ratios(times: Times, base: str, device: torch.device) -> dict[str, float]:
    """Name → the time of a call relative to that of `base` in the same round, the median over the rounds.

    Other load meets the calls of one round alike, so their ratio varies less than their times.
    """
    return {name: middle for name, (_, middle, _) in paired_quartiles(times, base, device).items()}


def paired_quartiles(times: Times, base: str, device: torch.device) -> dict[str, tuple[float, float, float]]:
    """Name → the quartiles, over the rounds, of the time of a call relative to that of `base` in the same round."""
    clock = _clock(device)
    found = {}
    for name, calls in times.items():
        if name != base:
            ratios = [call[clock] / max(own[clock], 1e-9) for call, own in zip(calls, times[base], strict=True)]
            low, high = quantiles(ratios, n=4, method="inclusive")[::2] if len(ratios) > 1 else ratios * 2
            found[name] = low, median(ratios), high
    return found


def lower_quartiles(times: Times, device: torch.device) -> dict[str, float]:
    """Name → the lower quartile of its calls, in seconds.

    Other load makes calls slower, never faster, and on a busy machine most of them.
    """
    clock = _clock(device)
    return {name: sorted(call[clock] for call in calls)[len(calls) // 4] for name, calls in times.items()}


def _clock(device: torch.device) -> int:
    """Which time counts: where PyTorch computes in one thread, its processor time, which other load hardly affects."""
    return 1 if device.type == "cpu" and torch.get_num_threads() == 1 else 0
