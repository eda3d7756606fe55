"""Distances between the channels of two MLPs, as histograms."""

from __future__ import annotations

from .mlp_full import pairs
from .similarities import histograms

EXPERIMENT = histograms("mlp_histograms", "Distances of channels: MLPs on MNIST", "MNIST", pairs, "post")
