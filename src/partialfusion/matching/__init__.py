"""Solvers: pure functions on cost matrices and masses, one a file."""

from .assignment import assignment
from .couple import couple, fused_count
from .partial import partial_assignment
from .transport import coupling, partial_coupling

__all__ = ["assignment", "couple", "coupling", "fused_count", "partial_assignment", "partial_coupling"]
