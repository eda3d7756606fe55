"""Partial fusion of ResNet-18 networks that were trained on the same images, in a regime that is easy to fuse."""

from __future__ import annotations

from ..ways import RECALIBRATED
from .aggregation import CIFAR_OURS, aggregation
from .grids import Grid
from .settings import Scale, alphas, resnet_pairs, shares

PAPER = "The paper draws the curves without numbers; OT fusion is close to the single networks (about 94.6 %) there."


def layout(scale: Scale) -> Grid:
    factors = shares(scale, coarse=True)
    ways = {"partial OT fusion": RECALIBRATED}
    return Grid(resnet_pairs(scale), ways, alphas(scale, coarse=True), factors, scale, midway=CIFAR_OURS)


EXPERIMENT = aggregation(
    "resnet_fusion",
    "Partial fusion of two ResNet-18 trained on CIFAR-10",
    ("fig:resnet_fusion",),
    "CIFAR-10",
    layout,
    paper=PAPER,
)
