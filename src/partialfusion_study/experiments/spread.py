"""Our own experiments: how much the results on CIFAR-10 vary from pair to pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ..cell import Cell
from ..methods import EXCHANGE_REFIT, OURS_POST_REFIT, OURS_REFIT, PARTIAL_OT, RECALIBRATED, REFIT, MethodConfig
from ..recipes import Pair
from ..report import Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .settings import Scale, resnet_ring, setting, vgg_ring

PARTIAL, REFITTED = "partial OT fusion", "partial OT, refitted (ours)"
VGG_METHODS = {PARTIAL: PARTIAL_OT, REFITTED: REFIT, EXCHANGE_REFIT: OURS_POST_REFIT}
RESNET_METHODS = {PARTIAL: RECALIBRATED, REFITTED: REFIT, EXCHANGE_REFIT: OURS_REFIT}
SIZES = (0.0, 0.2, 0.4, 1.0)


def spread(
    name: str,
    network: str,
    reference: str,
    pairs: Callable[[Scale], Sequence[Pair]],
    methods: Mapping[str, MethodConfig],
) -> Experiment:
    """The same fusions of three pairs.

    Args:
        name: name of the experiment.
        network: the networks in words.
        reference: the paper's figure, by number.
        pairs: scale → the pairs.
        methods: label → how they are merged.
    """

    def make_grid(scale: Scale) -> Grid:
        return Grid(pairs(scale), methods, (0.5, 1.0) if scale == "quick" else SIZES, (EQUAL,), scale)

    def cells(scale: Scale) -> list[Cell]:
        return make_grid(scale).cells()

    def report(scale: Scale, results: Results) -> Report:
        grid = make_grid(scale)
        table = grid.table(results, "pairs", "Accuracy (%) at equal shares")
        first = grid.alphas[0]
        listed = ", ".join(
            f"{label} {_with_spread(grid.accuracies(results, label, first, EQUAL))}" for label in methods
        )
        text = (
            f"{setting(scale, grid.pairs)} Clusters compare weights and activations after the activation function, as "
            "the library does for such networks."
        )
        parts = (grid.equal_figure(results, f"Three pairs of {network}"), table, grid.reference(results))
        return Report(f"At α = {first:g}: {listed}.", text, parts)

    def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
        return _claims(make_grid(scale), results)

    title = f"The same fusions of three pairs of {network} (ours)"
    return Experiment(name, title, (reference,), "CIFAR-10", cells, report, claims)


def _claims(grid: Grid, results: Results) -> Sequence[Verdict]:
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


VGG = spread("spread", "VGG-11", "Figure 11", vgg_ring, VGG_METHODS)
RESNET = spread("spread_resnet", "ResNet-18", "Figure 8", resnet_ring, RESNET_METHODS)
