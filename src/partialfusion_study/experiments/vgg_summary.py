"""Distances between the channels of two VGG-11, in short."""

from __future__ import annotations

from .settings import vgg_pairs
from .similarities import summary
from .vgg_full import ALL

PUBLISHED = tuple(row[:3] for row in ALL)

EXPERIMENT = summary(
    "vgg_summary", "Nearest channels within and across: VGG-11 on CIFAR-10", "CIFAR-10", vgg_pairs, "post", PUBLISHED
)
