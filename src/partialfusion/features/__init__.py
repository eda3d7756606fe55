"""What describes a channel when channels are compared: its weights, or its activations."""

from .activations import Activations, Need
from .readers import dense_bindings
from .traced import TracedModel
from .union import UnionFeatures, UnionHeads, UnionSpace
from .weights import WeightCosts

__all__ = [
    "Activations",
    "Need",
    "TracedModel",
    "UnionFeatures",
    "UnionHeads",
    "UnionSpace",
    "WeightCosts",
    "dense_bindings",
]
