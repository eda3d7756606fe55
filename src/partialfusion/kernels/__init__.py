"""Couplings, kernel pairs, reductions and plans: plain arrays, no models."""

from .choice import Choice, reduce_union
from .coupling import Coupling
from .pair import KernelPair, Pattern
from .reduction import Plan, Reduction, merge
from .template import PlanTemplate

__all__ = [
    "Choice",
    "Coupling",
    "KernelPair",
    "Pattern",
    "Plan",
    "PlanTemplate",
    "Reduction",
    "merge",
    "reduce_union",
]
