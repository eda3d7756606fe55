"""Alignment: couplings for every space of the network, from the costs of one space at a time."""

from .alignment import Alignment, Problem
from .fixed_point import fixed_point
from .greedy import greedy
from .models import align_models, check_numbers, couple_models, pair_costs
from .separate import separate

__all__ = [
    "Alignment",
    "Problem",
    "align_models",
    "check_numbers",
    "couple_models",
    "fixed_point",
    "greedy",
    "pair_costs",
    "separate",
]
