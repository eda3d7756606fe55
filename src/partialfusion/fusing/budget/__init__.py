"""Sizes as budgets: which spaces get more channels when the whole may only be so large."""

from .allocate import allocate
from .budget import Budget
from .paths import Path, coupling_paths, pruning_paths
from .sizes import Sizes, Structure
from .spend import Spender, spender

__all__ = ["Budget", "Path", "Sizes", "Spender", "Structure", "allocate", "coupling_paths", "pruning_paths", "spender"]
