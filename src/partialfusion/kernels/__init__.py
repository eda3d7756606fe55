"""Couplings, kernel pairs, reductions and plans: plain arrays, no models."""

from .choice import Choice, reduce_union
from .coupling import Coupling
from .draft import Chosen, Coupled, Draft, Match
from .pair import KernelPair, Pattern
from .reduction import Plan, Reduction, merge

__all__ = [
    "Choice",
    "Chosen",
    "Coupled",
    "Coupling",
    "Draft",
    "KernelPair",
    "Match",
    "Pattern",
    "Plan",
    "Reduction",
    "merge",
    "reduce_union",
]
