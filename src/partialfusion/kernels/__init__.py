"""Couplings, kernel pairs, reductions and plans: plain arrays, no models."""

from .coupling import Coupling
from .pair import KernelPair, Pattern
from .reduction import Convention, Plan, Reduction, merge

__all__ = ["Convention", "Coupling", "KernelPair", "Pattern", "Plan", "Reduction", "merge"]
