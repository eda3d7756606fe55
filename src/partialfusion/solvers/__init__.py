"""Solvers: pure functions on cost matrices, squared distances and masses. They never see a model.

assignment.py   one-to-one matchings of all or some of the channels of two models
transport.py    optimal transport and partial optimal transport
couple.py       couplings for an isolated fraction, by assignment or transport
clustering/     Ward, Lloyd, local search and correlated pairs

A compiled part, in Numba, stands beside its solver under the same name with an underscore.
"""

from .assignment import assignment, partial_assignment, partial_assignments
from .clustering import Clustering, cluster, exchange, lloyd, squared_distances, stochastic_ward, ward, zip_pairs
from .couple import couple, couple_blocks, couplings, fused_count
from .transport import coupling, partial_coupling

__all__ = [
    "Clustering",
    "assignment",
    "cluster",
    "couple",
    "couple_blocks",
    "coupling",
    "couplings",
    "exchange",
    "fused_count",
    "lloyd",
    "partial_assignment",
    "partial_assignments",
    "partial_coupling",
    "squared_distances",
    "stochastic_ward",
    "ward",
    "zip_pairs",
]
