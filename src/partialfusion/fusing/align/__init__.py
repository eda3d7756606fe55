"""Alignment: couplings for every space of the network, from the costs of one space at a time."""

from .aligner import Aligner
from .alignment import Alignment, Problem
from .fixed_point import fixed_point, refine
from .greedy import greedy
from .separate import FixedCosts, separate

__all__ = ["Aligner", "Alignment", "FixedCosts", "Problem", "fixed_point", "greedy", "refine", "separate"]
