"""Our own experiments: how much the results on CIFAR-10 vary from pair to pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from ..cell import Cell
from ..methods import EXCHANGE_REFIT, OURS_POST_REFIT, OURS_REFIT, PARTIAL_OT, RECALIBRATED, REFIT
from ..report import Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid, with_spread
from .settings import ALPHAS, NORMS_MEASURED, Scale, resnet_ring, setting, vgg_ring

PARTIAL, REFITTED = "partial OT fusion", "partial OT, refitted (ours)"
VGG_METHODS = {PARTIAL: PARTIAL_OT, REFITTED: REFIT, EXCHANGE_REFIT: OURS_POST_REFIT}
RESNET_METHODS = {PARTIAL: RECALIBRATED, REFITTED: REFIT, EXCHANGE_REFIT: OURS_REFIT}
SIZES = (0.0, 0.2, 0.4, 1.0)


def vgg_grid(scale: Scale) -> Grid:
    return Grid(vgg_ring(scale), VGG_METHODS, sizes(scale), (EQUAL,), scale)


def resnet_grid(scale: Scale) -> Grid:
    return Grid(resnet_ring(scale), RESNET_METHODS, sizes(scale), (EQUAL,), scale)


def sizes(scale: Scale) -> tuple[float, ...]:
    return (0.5, 1.0) if scale == "quick" else SIZES


def spread(
    name: str,
    network: str,
    reference: str,
    make_grid: Callable[[Scale], Grid],
    claims: Callable[[Grid, Results], Sequence[Verdict]],
    *,
    further: Callable[[Grid, Results], str] = lambda *_: "",
    norms: str = "",
) -> Experiment:
    """The same fusions of three pairs.

    Args:
        name: name of the experiment.
        network: the networks in words.
        reference: the paper's figure, by number.
        make_grid: scale → the pairs and how they are merged.
        claims: the grid and the results → the verdicts.
        further: the grid and the results → what else was found, in words.
        norms: how the statistics of batch norms are found.
    """

    def cells(scale: Scale) -> list[Cell]:
        return make_grid(scale).cells()

    def report(scale: Scale, results: Results) -> Report:
        grid = make_grid(scale)
        table = grid.table(results, "pairs", "Accuracy (%) at equal shares")
        first = grid.alphas[0]
        listed = ", ".join(
            f"{label} {with_spread(grid.accuracies(results, label, first, EQUAL))} %"
            for label in (PARTIAL, EXCHANGE_REFIT)
        )
        text = (
            f"{setting(scale, grid.pairs)} {norms} Clusters compare weights and activations after the activation "
            f"function, as the library does for such networks. {further(grid, results)}"
        )
        parts = (grid.equal_figure(results, f"Three pairs of {network}"), table, grid.reference(results))
        return Report(f"At α = {first:g}: {listed}.", text, parts)

    def judged(scale: Scale, results: Results) -> Sequence[Verdict]:
        return claims(make_grid(scale), results)

    title = f"The same fusions of three pairs of {network} (ours)"
    return Experiment(name, title, (reference,), "CIFAR-10", cells, report, judged)


def rising(grid: Grid, results: Results) -> list[Verdict]:
    curves = list(zip(*(grid.accuracies(results, PARTIAL, a, EQUAL) for a in grid.alphas), strict=True))
    steps = [after > before for curve in curves for before, after in pairwise(curve)]
    return [
        Verdict.of(
            "Partial OT fusion improves with the number of channels, in every pair.",
            steps,
            f"from α = {grid.alphas[0]:g} to {grid.alphas[-1]:g}, pair by pair: "
            + "; ".join(", ".join(f"{found:.2f}" for found in curve) for curve in curves),
            cases="steps",
        ).among("α", ALPHAS, grid.alphas)
    ]


def gains(grid: Grid, results: Results) -> list[float]:
    """What the first isolated channels add to OT fusion, in points, pair by pair."""
    zero, little = (grid.accuracies(results, PARTIAL, a, EQUAL) for a in grid.alphas[:2])
    return [b - a for a, b in zip(zero, little, strict=True)]


def vgg_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    gained = gains(grid, results)
    return [
        *rising(grid, results),
        Verdict.of(
            "20 % more neurons improve OT fusion by 1.8 points or more, in every pair.",
            [gain >= 1.8 for gain in gained],
            "points: " + ", ".join(f"{gain:+.2f}" for gain in gained),
            cases="pairs",
        ),
    ]


def resnet_further(grid: Grid, results: Results) -> str:
    gained = gains(grid, results)
    return (
        f"From α = {grid.alphas[0]:g} to {grid.alphas[1]:g}, partial OT fusion gains {fmean(gained):.2f} points on "
        f"average, and {min(gained):.2f} or more in every pair; the paper gives no such number for ResNet-18."
    )


VGG = spread("spread", "VGG-11", "Figure 11", vgg_grid, vgg_claims)
RESNET = spread(
    "spread_resnet",
    "ResNet-18",
    "Figure 8",
    resnet_grid,
    rising,
    further=resnet_further,
    norms=NORMS_MEASURED,
)
