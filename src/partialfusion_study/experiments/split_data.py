"""Aggregation of MLPs that were trained on different digits."""

from __future__ import annotations

from .aggregation import MNIST_WAYS, aggregation
from .grids import Grid
from .settings import Scale, alphas, mnist_pairs, shares


def layout(scale: Scale) -> Grid:
    return Grid(mnist_pairs(True, scale), MNIST_WAYS, alphas(scale), shares(scale), scale)


EXPERIMENT = aggregation(
    "split_data", "Aggregation of two MLPs trained on different parts of MNIST", ("fig:split_data",), "MNIST", layout
)
