"""Solvers: pure functions on cost matrices, squared distances and masses. They never see a model.

assignment.py     one-to-one matchings of all or some of the channels of two models
transport.py      optimal transport and partial optimal transport
couple.py         couplings for an isolated fraction, by assignment or transport
interpolation.py  the channels from which all others can be computed best, and the map that computes them
clustering/       Ward, Lloyd, local search and correlated pairs

A compiled part, in Numba, stands beside its solver under the same name with an underscore; _full_assignment.py is that
of matchings of all channels.
"""

from .assignment import Prices, assignment, block_assignments, partial_assignment, partial_assignments
from .clustering import Clustering, cluster, exchange, lloyd, squared_distances, stochastic_ward, ward, zip_pairs
from .couple import MassPair, couple, couple_blocks, couplings, fused_count
from .interpolation import Selection, nearest_kept, read_map, select, select_blocks, swap
from .transport import coupling, partial_coupling

__all__ = [
    "Clustering",
    "MassPair",
    "Prices",
    "Selection",
    "assignment",
    "block_assignments",
    "cluster",
    "couple",
    "couple_blocks",
    "coupling",
    "couplings",
    "exchange",
    "fused_count",
    "lloyd",
    "nearest_kept",
    "partial_assignment",
    "partial_assignments",
    "partial_coupling",
    "read_map",
    "select",
    "select_blocks",
    "squared_distances",
    "stochastic_ward",
    "swap",
    "ward",
    "zip_pairs",
]
