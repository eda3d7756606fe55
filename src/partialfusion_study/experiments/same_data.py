"""Aggregation of VGG-11 networks that were trained on the same images."""

from __future__ import annotations

from .aggregation import CIFAR_OURS, VGG_WAYS, aggregation
from .grids import Grid
from .settings import Scale, alphas, shares, vgg_pairs

PAPER = (
    "At α = 0 and equal shares the paper has 66.3 % for clustering and 30.7 % for unstructured pruning, and a gain of "
    "1.8 points for partial OT fusion from α = 0 to 0.2; the rest is drawn without numbers."
)


def layout(scale: Scale) -> Grid:
    factors = shares(scale, coarse=True)
    return Grid(vgg_pairs(scale), VGG_WAYS, alphas(scale, coarse=True), factors, scale, midway=CIFAR_OURS)


EXPERIMENT = aggregation(
    "same_data", "Aggregation of two VGG-11 trained on CIFAR-10", ("fig:same_data",), "CIFAR-10", layout, paper=PAPER
)
