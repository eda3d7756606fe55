"""Sizes as budgets: which spaces get more channels when the whole may only be so large."""

from .allocate import BudgetError, allocate
from .allocator import Allocator, allocator
from .budget import Budget
from .latency import ROUNDS, OneByOne, Stopwatch, faster_layout
from .paths import Path, coupling_paths, pruning_paths
from .sizes import Sizes, Structure

__all__ = [
    "ROUNDS",
    "Allocator",
    "Budget",
    "BudgetError",
    "OneByOne",
    "Path",
    "Sizes",
    "Stopwatch",
    "Structure",
    "allocate",
    "allocator",
    "coupling_paths",
    "faster_layout",
    "pruning_paths",
]
