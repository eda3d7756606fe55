"""Sizes as budgets: which spaces get more channels when the whole may only be so large."""

from .allocate import BudgetError, allocate
from .allocator import Allocator, allocator
from .budget import Budget
from .latency import Stopwatch
from .paths import Path, coupling_paths, pruning_paths
from .sizes import Sizes, Structure

__all__ = [
    "Allocator",
    "Budget",
    "BudgetError",
    "Path",
    "Sizes",
    "Stopwatch",
    "Structure",
    "allocate",
    "allocator",
    "coupling_paths",
    "pruning_paths",
]
