"""Aggregation of MLPs that were trained on the same images."""

from __future__ import annotations

from .aggregation import OUR_WAYS, PAPER_WAYS, aggregation
from .grids import Grid
from .settings import Scale, alphas, mnist_pairs, shares


def layout(scale: Scale) -> Grid:
    return Grid(mnist_pairs(False, scale), PAPER_WAYS, alphas(scale), shares(scale), scale, midway=OUR_WAYS)


EXPERIMENT = aggregation(
    "same_data_MNIST", "Aggregation of two MLPs trained on all of MNIST", ("fig:same_data_MNIST",), "MNIST", layout
)
