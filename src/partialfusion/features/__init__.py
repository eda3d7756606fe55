"""What describes a channel when channels are compared: its weights, or its activations."""

from .activations import activation_costs, union_moments
from .sides import Side
from .union import UnionFeatures, UnionSpace
from .weights import WeightCosts

__all__ = ["Side", "UnionFeatures", "UnionSpace", "WeightCosts", "activation_costs", "union_moments"]
