"""Distances between the channels of two VGG-11: the paper's long table, its short table and its histograms."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ..report import Verdict
from .experiment import Results
from .grids import with_spread
from .mlp_similarity import MLPS
from .settings import Scale, vgg_pairs
from .similarities import Distances, Rows, full, histograms, summary, to_mean

ALL = (
    (2.31, 2.35, 1.68, 1.76, 7.56, 7.39, 7.40, 7.40),
    (3.81, 3.85, 3.43, 3.43, 8.71, 8.62, 8.63, 8.63),
    (4.23, 4.24, 4.03, 4.04, 7.49, 7.42, 7.44, 7.44),
    (1.89, 1.88, 1.79, 1.79, 2.91, 2.91, 2.91, 2.91),
    (1.73, 1.72, 1.72, 1.75, 3.35, 3.47, 3.41, 3.41),
    (1.12, 1.21, 1.25, 1.30, 3.76, 3.80, 3.80, 3.80),
    (2.26, 2.32, 2.63, 2.74, 8.94, 9.07, 9.06, 9.06),
    (3.62, 3.56, 4.27, 4.34, 13.44, 13.52, 13.50, 13.50),
)
NEAR = (
    (1.47, 1.47, 1.11, 1.16, 6.04, 5.93, 5.90, 5.94),
    (2.99, 2.94, 2.73, 2.79, 7.48, 7.48, 7.41, 7.49),
    (3.95, 3.96, 3.75, 3.76, 7.09, 7.03, 7.05, 7.04),
    (1.66, 1.64, 1.57, 1.58, 2.66, 2.66, 2.66, 2.66),
    (1.56, 1.51, 1.55, 1.54, 3.01, 3.06, 3.07, 2.99),
    (0.95, 0.97, 1.06, 1.06, 3.29, 3.30, 3.31, 3.30),
    (1.88, 1.90, 2.20, 2.26, 8.02, 8.07, 8.16, 8.04),
    (2.93, 2.90, 3.55, 3.66, 12.09, 12.05, 12.16, 12.02),
)

VGGS = Distances("CIFAR-10", vgg_pairs, "post")


def larger_range(scale: Scale, results: Results, pairs: Sequence[Rows]) -> Sequence[Verdict]:
    """The verdict on how near the nearest channels are in the first layer, compared with MLPs."""
    mlps = fmean(
        fmean(layer["nearest_a_to_b"]) / fmean(layer["mean_a_to_b"])
        for layers in MLPS.layers(scale, results)
        for layer in layers
    )
    ours, theirs = [[*map(to_mean, layer)] for layer in zip(*pairs, strict=True)], [to_mean(row) for row in ALL]
    means = [fmean(found) for found in ours]
    return [
        Verdict.of(
            "Nearest distances are much smaller than mean ones, more than in MLPs, and most of all in the first layer.",
            [means[0] == min(means), means[0] < mlps],
            f"nearest / mean from A to B, layer by layer: {', '.join(map(with_spread, ours))} (paper: "
            f"{', '.join(f'{found:.2f}' for found in theirs)}); MLPs {mlps:.2f} on average",
            cases="parts of the claim",
        )
    ]


FULL = full(
    "vgg_full",
    "Similarity of channels: VGG-11 on CIFAR-10",
    ("Table 9",),
    VGGS,
    (ALL, NEAR),
    further=larger_range,
    beside=MLPS.cells,
)
SUMMARY = summary(
    "vgg_summary",
    "Nearest channels within and across networks: VGG-11 on CIFAR-10",
    ("Table 11",),
    VGGS,
    tuple(row[:3] for row in ALL),
)
HISTOGRAMS = histograms("vgg_histograms", "Distances between channels: VGG-11 on CIFAR-10", ("Figure 17",), VGGS)
