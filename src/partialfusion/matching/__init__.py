"""Solvers: pure functions on cost matrices and masses, one a file."""

from .assignment import assignment
from .blocks import couple_blocks
from .couple import couple, fused_count
from .partial import partial_assignment
from .transport import coupling, partial_coupling

__all__ = ["assignment", "couple", "couple_blocks", "coupling", "fused_count", "partial_assignment", "partial_coupling"]
