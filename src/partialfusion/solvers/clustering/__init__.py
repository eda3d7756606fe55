"""Clustering: channels into a given number of clusters, by their squared distances or their covariance."""

from .lloyd import lloyd
from .local_search import cluster, exchange
from .problem import Clustering, squared_distances
from .ward import stochastic_ward, ward
from .zip import zip_pairs

__all__ = [
    "Clustering",
    "cluster",
    "exchange",
    "lloyd",
    "squared_distances",
    "stochastic_ward",
    "ward",
    "zip_pairs",
]
