"""Solvers: pure functions on cost matrices, features and masses, one a file."""

from .assignment import assignment
from .blocks import couple_blocks
from .clustering import Clustering, squared_distances
from .couple import couple, couplings, fused_count
from .exchange import exchange, exchange_of
from .lloyd import lloyd, lloyd_of
from .partial import partial_assignment, partial_assignments
from .search import cluster, cluster_of
from .transport import coupling, partial_coupling
from .ward import stochastic_ward, stochastic_ward_of, ward, ward_of
from .zip import zip_of, zip_pairs

__all__ = [
    "Clustering",
    "assignment",
    "cluster",
    "cluster_of",
    "couple",
    "couple_blocks",
    "coupling",
    "couplings",
    "exchange",
    "exchange_of",
    "fused_count",
    "lloyd",
    "lloyd_of",
    "partial_assignment",
    "partial_assignments",
    "partial_coupling",
    "squared_distances",
    "stochastic_ward",
    "stochastic_ward_of",
    "ward",
    "ward_of",
    "zip_of",
    "zip_pairs",
]
