"""Distances between the channels of two MLPs, in short."""

from __future__ import annotations

from .mlp_full import ALL, pairs
from .similarities import summary

PUBLISHED = tuple(row[:3] for row in ALL)

EXPERIMENT = summary(
    "mlp_summary", "Nearest channels within and across: MLPs on MNIST", "MNIST", pairs, "post", PUBLISHED
)
