"""Our own experiment: how much the results of VGG-11 vary from pair to pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..cell import Cell
from ..methods import EXCHANGE_REFIT, OURS_POST_REFIT, PARTIAL_OT, REFIT
from ..report import Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid, with_spread
from .settings import ALPHAS, Scale, setting, vgg_ring

PARTIAL = "partial OT fusion"
METHODS = {PARTIAL: PARTIAL_OT, "partial OT, refitted (ours)": REFIT, EXCHANGE_REFIT: OURS_POST_REFIT}
SIZES = (0.0, 0.2, 0.4, 1.0)


def vgg_grid(scale: Scale) -> Grid:
    return Grid(vgg_ring(scale), METHODS, sizes(scale), (EQUAL,), scale)


def sizes(scale: Scale) -> tuple[float, ...]:
    return (0.5, 1.0) if scale == "quick" else SIZES


def cells(scale: Scale) -> list[Cell]:
    return vgg_grid(scale).cells()


def report(scale: Scale, results: Results) -> Report:
    grid = vgg_grid(scale)
    table = grid.table(results, "pairs", "Accuracy (%) at equal shares")
    first = grid.alphas[0]
    listed = ", ".join(
        f"{label} {with_spread(grid.accuracies(results, label, first, EQUAL))} %" for label in (PARTIAL, EXCHANGE_REFIT)
    )
    text = (
        f"{setting(scale, grid.pairs)} Clusters compare weights and activations after the activation function, as the "
        "library does for such networks."
    )
    parts = (grid.equal_figure(results, "Three pairs of VGG-11"), table, grid.reference(results))
    return Report(f"At α = {first:g}: {listed}.", text, parts)


def rising(grid: Grid, results: Results) -> Verdict:
    """The verdict on the claim that the accuracy at equal shares rises with every measured alpha, in every pair."""
    curves = list(zip(*(grid.accuracies(results, PARTIAL, a, EQUAL) for a in grid.alphas), strict=True))
    steps = [after > before for curve in curves for before, after in pairwise(curve)]
    return Verdict.of(
        "Partial OT fusion improves with the number of channels, in every pair.",
        steps,
        f"from α = {grid.alphas[0]:g} to {grid.alphas[-1]:g}, pair by pair: "
        + "; ".join(", ".join(f"{found:.2f}" for found in curve) for curve in curves),
        cases="steps",
    ).among("α", ALPHAS, grid.alphas)


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    grid = vgg_grid(scale)
    zero, little = (grid.accuracies(results, PARTIAL, a, EQUAL) for a in grid.alphas[:2])
    gained = [b - a for a, b in zip(zero, little, strict=True)]
    return [
        rising(grid, results),
        Verdict.of(
            "20 % more neurons improve OT fusion by 1.8 points or more, in every pair.",
            [gain >= 1.8 for gain in gained],
            "points: " + ", ".join(f"{gain:+.2f}" for gain in gained),
            cases="pairs",
        ),
    ]


EXPERIMENT = Experiment(
    "spread",
    "The same fusions of three pairs of VGG-11 (ours)",
    ("Figure 11",),
    "CIFAR-10",
    cells,
    report,
    claims,
)
