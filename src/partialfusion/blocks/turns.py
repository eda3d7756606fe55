"""Timing that a busy machine cannot bias: calls are made in turns, so that other work meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

Times = dict[str, list[tuple[float, float]]]  # name → wall-clock time and processor time of every call, in seconds


def in_turns(
    functions: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    fewest: int = 3,
    most: int = 2000,
    device: torch.device | None = None,
) -> Times:
    """Times of functions that are called one after the other, again and again, after one call of each to warm up.

    Args:
        functions: what to time.
        seconds: how long to go on.
        fewest: rounds, however long they take.
        most: rounds, however short they are.
        device: where they compute, to wait for it; the CPU unless given.
    """

    def finish() -> None:
        if device is not None and device.type != "cpu":
            torch.accelerator.synchronize(device)

    times: Times = {name: [] for name in functions}
    for function in functions.values():
        function()
    finish()
    begin, rounds = time.perf_counter(), 0
    while rounds < fewest or (rounds < most and time.perf_counter() - begin < seconds):
        rounds += 1
        for name, function in functions.items():
            start, start_work = time.perf_counter(), time.thread_time()
            function()
            finish()
            times[name].append((time.perf_counter() - start, time.thread_time() - start_work))
    return times


def medians(times: Times) -> dict[str, tuple[float, float]]:
    """Name → median wall-clock time and median processor time."""
    return {
        name: (median(wall for wall, _ in found), median(work for _, work in found)) for name, found in times.items()
    }
