"""Our own experiment: how much the results on CIFAR-10 vary from pair to pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..cell import Cell
from ..methods import OURS_REFIT, PARTIAL_OT, REFIT
from ..report import Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .settings import Scale, setting, vgg_ring

PARTIAL, REFITTED = "partial OT fusion", "partial OT, refitted (ours)"
CLUSTERED = "clustering with exchange, refitted (ours)"
METHODS = {PARTIAL: PARTIAL_OT, REFITTED: REFIT, CLUSTERED: replace(OURS_REFIT, site="post")}
SIZES = (0.0, 0.2, 0.4, 1.0)


def make_grid(scale: Scale) -> Grid:
    return Grid(vgg_ring(scale), METHODS, (0.5, 1.0) if scale == "quick" else SIZES, (EQUAL,), scale)


def cells(scale: Scale) -> list[Cell]:
    return make_grid(scale).cells()


def report(scale: Scale, results: Results) -> Report:
    grid = make_grid(scale)
    note = "Every network is in two of the pairs, so independent pairs would vary more than the numbers after ± say."
    table = grid.table(results, "pairs", "Accuracy (%) at equal shares", note=note)
    first = grid.alphas[0]
    listed = ", ".join(f"{label} {_with_spread(grid.accuracies(results, label, first, EQUAL))}" for label in METHODS)
    text = (
        f"{setting(scale, grid.pairs)} The pairs are made of as many networks, each with the next. Clusters compare "
        "weights and activations after the activation function, as the library does for networks with ReLU."
    )
    parts = (grid.equal_figure(results, "Three pairs of VGG-11"), table, grid.reference(results))
    return Report(f"At α = {first:g}: {listed}.", text, parts)


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    grid = make_grid(scale)
    curves = list(zip(*(grid.accuracies(results, PARTIAL, a, EQUAL) for a in grid.alphas), strict=True))
    steps = [after > before for curve in curves for before, after in pairwise(curve)]
    gains = [curve[1] - curve[0] for curve in curves]
    return [
        Verdict.of(
            "Partial OT fusion improves with the number of channels, in every pair.",
            steps,
            f"from α = {grid.alphas[0]:g} to {grid.alphas[-1]:g}, pair by pair: "
            + "; ".join(", ".join(f"{found:.2f}" for found in curve) for curve in curves),
        ),
        Verdict.of(
            "20 % more neurons improve OT fusion by 1.8 points or more, in every pair.",
            [gain >= 1.8 for gain in gains],
            "points: " + ", ".join(f"{gain:+.2f}" for gain in gains),
        ),
    ]


def _with_spread(samples: Sequence[float]) -> str:
    found = Value.of(samples)
    return f"{found.mean:.2f} %" if found.std is None else f"{found.mean:.2f} ± {found.std:.2f} %"


EXPERIMENT = Experiment(
    "spread", "The same fusions of three pairs of VGG-11 (ours)", ("Figure 11",), "CIFAR-10", cells, report, claims
)
