"""What the machine offers to this process."""

from __future__ import annotations

import os


def available_cores() -> int:
    """The number of processor cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
