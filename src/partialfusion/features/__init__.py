"""What describes a channel when channels are compared: its weights, or its activations."""

from .activations import activation_costs, union_moments
from .recorder import Site
from .sides import Side
from .union import UnionFeatures, UnionSpace
from .weights import WeightCosts

__all__ = ["Side", "Site", "UnionFeatures", "UnionSpace", "WeightCosts", "activation_costs", "union_moments"]
