"""Couplings, kernel pairs, reductions and plans: plain arrays, no models."""

from .choice import Choice, reduce_union
from .coupling import Coupling
from .pair import KernelPair, Pattern
from .reduction import Convention, Plan, Reduction, merge

__all__ = [
    "Choice",
    "Convention",
    "Coupling",
    "KernelPair",
    "Pattern",
    "Plan",
    "Reduction",
    "merge",
    "reduce_union",
]
