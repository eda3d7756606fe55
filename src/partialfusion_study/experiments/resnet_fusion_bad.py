"""The same with little weight decay and large batches, which makes networks that are hard to fuse."""

from __future__ import annotations

from ..ways import RECALIBRATED
from .aggregation import CIFAR_OURS, aggregation
from .grids import Grid
from .settings import Scale, alphas, resnet_pairs, shares

PAPER = "The paper draws the curves without numbers; OT fusion drops to about 80 % at equal shares there."


def layout(scale: Scale) -> Grid:
    factors = shares(scale, coarse=True)
    ways = {"partial OT fusion": RECALIBRATED}
    return Grid(resnet_pairs(scale, hard=True), ways, alphas(scale, coarse=True), factors, scale, midway=CIFAR_OURS)


EXPERIMENT = aggregation(
    "resnet_fusion_bad",
    "Partial fusion of two ResNet-18 trained with less weight decay",
    ("fig:resnet_fusion_bad",),
    "CIFAR-10",
    layout,
    paper=PAPER,
)
