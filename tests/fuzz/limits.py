"""The memory and the time that one call takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MEMORY = 200 << 20  # bytes that a case may need beyond what the process had
SECONDS = 2.0  # CPU time that a case may take


@dataclass
class Cost:
    """What a call needed: the peak of its memory beyond what the process had before, and its CPU time."""

    memory: int = 0
    seconds: float = 0.0

    @property
    def small(self) -> bool:
        return self.memory <= MEMORY and self.seconds <= SECONDS

    def __str__(self) -> str:
        return f"{self.memory >> 20} MB, {self.seconds:.1f} s"


@contextmanager
def measured() -> Iterator[Cost]:
    """The cost of what happens in the context; memory is measured on Linux alone."""
    cost = Cost()
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, started = _peak(), time.process_time()
    try:
        yield cost
    finally:
        cost.memory, cost.seconds = _peak() - before, time.process_time() - started


def _peak() -> int:
    if sys.platform != "linux":
        return 0
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
