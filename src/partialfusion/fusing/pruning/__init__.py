"""Generalised pruning: the union of the models, or one model, reduced space by space."""

from .methods import Cluster, Magnitude, Preference, PruningMethod, Search, Zip

__all__ = ["Cluster", "Magnitude", "Preference", "PruningMethod", "Search", "Zip"]
