"""What describes a channel when channels are compared: its weights, or its activations."""

from .activations import activation_costs
from .sides import Side
from .weights import WeightCosts

__all__ = ["Side", "WeightCosts", "activation_costs"]
