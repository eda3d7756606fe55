"""Couplings, kernel pairs, reductions and plans: plain arrays, no models."""

from .choice import Choice, reduce_union
from .coupling import Coupling
from .draft import Chosen, Coupled, Draft, Match, Mix
from .pair import KernelPair, Pattern
from .reduction import Convention, Plan, Reduction, merge

__all__ = [
    "Choice",
    "Chosen",
    "Convention",
    "Coupled",
    "Coupling",
    "Draft",
    "KernelPair",
    "Match",
    "Mix",
    "Pattern",
    "Plan",
    "Reduction",
    "merge",
    "reduce_union",
]
