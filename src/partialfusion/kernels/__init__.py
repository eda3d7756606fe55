"""Couplings, kernel pairs, reductions and plans: plain arrays, no models."""

from .choice import Choice, reduce_union
from .coupling import Coupling
from .pair import Interpolation, KernelPair, Pattern, ReadMap, Shift
from .reduction import Plan, Reduction, merge
from .template import PlanTemplate

__all__ = [
    "Choice",
    "Coupling",
    "Interpolation",
    "KernelPair",
    "Pattern",
    "Plan",
    "PlanTemplate",
    "ReadMap",
    "Reduction",
    "Shift",
    "merge",
    "reduce_union",
]
