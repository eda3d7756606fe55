"""Repeated timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Median time of a call, after one call to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return median(times)
