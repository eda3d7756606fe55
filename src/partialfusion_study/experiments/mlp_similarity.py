"""Distances between the channels of two MLPs: the paper's long table, its short table and its histograms."""

from __future__ import annotations

from functools import partial

from .settings import mnist_pairs
from .similarities import Distances, full, histograms, summary

ALL = (
    (33.8, 34.4, 32.3, 32.3, 58.7, 60.6, 59.4, 59.4),
    (26.7, 27.1, 27.4, 26.5, 55.0, 58.2, 56.5, 56.5),
    (26.1, 27.4, 26.8, 28.4, 60.4, 62.9, 61.7, 61.7),
)
NEAR = (
    (30.7, 30.9, 29.2, 29.3, 54.6, 56.0, 55.6, 54.6),
    (24.1, 23.6, 24.6, 23.0, 51.6, 54.1, 53.1, 52.4),
    (22.7, 24.3, 23.7, 25.2, 56.6, 59.6, 58.2, 57.9),
)
MLPS = Distances("MNIST", partial(mnist_pairs, False), "post")

FULL = full("mlp_full", "Similarity of channels: MLPs on MNIST", ("Table 8",), MLPS, (ALL, NEAR))
SUMMARY = summary(
    "mlp_summary",
    "Nearest channels within and across networks: MLPs on MNIST",
    ("Table 10",),
    MLPS,
    tuple(row[:3] for row in ALL),
)
HISTOGRAMS = histograms("mlp_histograms", "Distances between channels: MLPs on MNIST", ("Figure 16",), MLPS)
