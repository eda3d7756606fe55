"""Distances between the channels of two VGG-11, as histograms."""

from __future__ import annotations

from .settings import vgg_pairs
from .similarities import histograms

EXPERIMENT = histograms("vgg_histograms", "Distances of channels: VGG-11 on CIFAR-10", "CIFAR-10", vgg_pairs, "post")
