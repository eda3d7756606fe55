"""The comparison that the paper makes on several networks: partial OT, clustering and pruning of the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from ..cell import Cell
from ..methods import (
    ACTIVATIONS,
    AFTER_RELU,
    CLUSTER,
    CLUSTERING,
    EXCHANGE,
    EXCHANGE_REFIT,
    OURS,
    OURS_REFIT,
    PARTIAL_OT,
    PRUNING,
    RECALIBRATED,
    REFIT,
    MethodConfig,
)
from ..recipes import Pair
from ..report import Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .settings import Scale, alphas, mnist_pairs, resnet_pairs, setting, shares, vgg_pairs

PARTIAL, PRUNED = "partial OT fusion", "unstructured pruning"
PAPER_METHODS = {PARTIAL: PARTIAL_OT, CLUSTERING: CLUSTER, PRUNED: PRUNING}
OUR_METHODS = {"partial OT, refitted (ours)": REFIT, EXCHANGE: OURS, EXCHANGE_REFIT: OURS_REFIT}
OUR_CIFAR_METHODS = {"partial OT, activations": ACTIVATIONS, **OUR_METHODS}
VGG_METHODS, OUR_VGG_METHODS = (
    {label: AFTER_RELU.get(label, config) for label, config in methods.items()}
    for methods in (PAPER_METHODS, OUR_CIFAR_METHODS)
)


def aggregation(
    name: str,
    title: str,
    references: tuple[str, ...],
    data: str,
    make_grid: Callable[[Scale], Grid],
    claims: Callable[[Grid, Results], Sequence[Verdict]],
    *,
    paper: str = "",
    beside: Callable[[Scale], Sequence[Cell]] = lambda _: (),
) -> Experiment:
    """An experiment over a grid, with a panel for each method.

    Args:
        name: name of the experiment.
        title: title of the experiment.
        references: the paper's figures, by number.
        data: the data set.
        make_grid: scale → the grid.
        claims: the grid and the results → the verdicts.
        paper: what the paper reports.
        beside: cells of other grids that the verdicts look at.
    """

    def cells(scale: Scale) -> list[Cell]:
        return [*make_grid(scale).cells(), *beside(scale)]

    def report(scale: Scale, results: Results) -> Report:
        grid = make_grid(scale)
        table = grid.table(results, "equal", "Accuracy (%) at equal shares", note=paper)
        parts = (*grid.figures(results, title), table, grid.reference(results))
        return Report(_finding(grid, results), setting(scale, grid.pairs), parts)

    def judged(scale: Scale, results: Results) -> Sequence[Verdict]:
        return claims(make_grid(scale), results)

    return Experiment(name, title, references, data, cells, report, judged)


def _finding(grid: Grid, results: Results) -> str:
    """The first and the best method at the smallest size, and the ensemble."""
    at_zero = {label: grid.mean(results, label, grid.alphas[0]) for label in grid.all_methods}
    first, best = next(iter(grid.methods)), max(at_zero, key=lambda label: at_zero[label])
    top = grid.mean(results, first, 1.0)
    equal, every = (grid.steps(results, first, shares) for shares in ([EQUAL], grid.between))
    return (
        f"At the size of one model and equal shares, {first} reaches {at_zero[first]:.2f} % and the ensemble "
        f"{top:.2f} %; the best method is {best} with {at_zero[best]:.2f} %. The accuracy of {first} rises with alpha "
        f"in {sum(equal)} of {len(equal)} steps at equal shares, and in {sum(every)} of {len(every)} at all shares "
        f"between 0 and 1. {grid.overall(results)}"
    )


def split_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    gaps = {
        alpha: fmean(
            grid.mean(results, CLUSTERING, alpha, s) - grid.mean(results, PARTIAL, alpha, s) for s in grid.between
        )
        for alpha in grid.fused_alphas
    }
    small, large = (fmean(gap for a, gap in gaps.items() if (a < 0.5) == low) for low in (True, False))
    spreads = {
        label: fmean(stdev(grid.accuracies(results, label, 0.0, s)) for s in grid.between)
        for label in (CLUSTERING, PARTIAL)
    }
    ensemble = grid.mean(results, PRUNED, 1.0, 0.3)
    pruned = {a: grid.mean(results, PRUNED, a, 0.3) for a in grid.fused_alphas}
    zero, little = (grid.mean(results, PARTIAL, a) for a in (0.0, 0.2))
    steps = grid.steps(results, PRUNED, grid.between)
    return [
        grid.rising(results, PARTIAL, "Partial OT fusion improves monotonically with the number of neurons."),
        Verdict.of(
            "20 % more neurons already give a clear improvement over OT fusion.",
            [little - zero > 0.2 * (grid.mean(results, PARTIAL, 1.0) - zero)],
            f"α = 0 to 0.2 at equal shares: {zero:.2f} to {little:.2f} %",
        ),
        Verdict.of(
            "Generalised pruning by clustering is often better than partial OT fusion.",
            [gap > 0 for gap in gaps.values()],
            "mean gap over the shares between 0 and 1: "
            + ", ".join(f"{gap:+.2f} (α = {a:g})" for a, gap in gaps.items()),
            often=True,
        ),
        Verdict.of(
            "That holds particularly for large α, near the ensemble.",
            [large > small],
            f"mean gap {small:+.2f} points at α below 0.5, {large:+.2f} at α from 0.5 on",
        ),
        Verdict.of(
            "At α = 0 clustering varies less than OT fusion.",
            [spreads[CLUSTERING] < spreads[PARTIAL]],
            f"standard deviation over the pairs, mean over the shares: {spreads[CLUSTERING]:.2f} and "
            f"{spreads[PARTIAL]:.2f} points",
        ),
        Verdict.of(
            "Unstructured pruning does not rise monotonically with α.",
            [not all(steps)],
            f"it falls in {len(steps) - sum(steps)} of {len(steps)} steps at shares between 0 and 1",
        ),
        Verdict.of(
            "Unstructured pruning is better than the ensemble at an interpolation factor of 0.3, for most α.",
            [accuracy > ensemble for accuracy in pruned.values()],
            f"ensemble {ensemble:.2f} %; pruned: " + ", ".join(f"{v:.2f} (α = {a:g})" for a, v in pruned.items()),
            often=True,
        ),
    ]


def mlp_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    rising = [
        grid.rising(results, label, f"On the same data, {label} benefits from more neurons.") for label in PAPER_METHODS
    ]
    zero, single = grid.mean(results, PARTIAL, 0.0), min(grid.alone(results))
    return [
        *rising,
        _ahead(grid, results, CLUSTERING, PARTIAL, "For MLPs, clustering outperforms partial OT fusion."),
        _ahead(grid, results, CLUSTERING, PRUNED, "For MLPs, clustering outperforms unstructured pruning."),
        Verdict.of(
            "Weight aggregation alone (α = 0, equal shares) is below both networks trained on the same data.",
            [zero < single],
            f"OT fusion {zero:.2f} %, the weaker network {single:.2f} %",
        ),
    ]


def vgg_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    zero, little = (grid.mean(results, PARTIAL, a) for a in (0.0, 0.2))
    single = fmean(grid.alone(results))
    clustered, pruned = (grid.mean(results, label, 0.0) for label in (CLUSTERING, PRUNED))
    return [
        _ahead(grid, results, PARTIAL, CLUSTERING, "For CNNs, partial OT fusion outperforms clustering."),
        _ahead(grid, results, PARTIAL, PRUNED, "For CNNs, partial OT fusion outperforms unstructured pruning."),
        Verdict.of(
            "At α = 0 OT fusion is much better than clustering.",
            [zero - clustered > 5],
            f"OT fusion {zero:.2f} %, clustering {clustered:.2f} % (paper: 66.3 %)",
        ),
        Verdict.of_size(
            "20 % more neurons improve OT fusion by 1.8 points.", little - zero, 1.8, f"{little - zero:+.2f} points"
        ),
        Verdict.of(
            "At α = 0 clustering and especially pruning fail to preserve the accuracy.",
            [clustered < single - 5, pruned < clustered],
            f"clustering {clustered:.2f} % (paper: 66.3), pruning {pruned:.2f} % (paper: 30.7), single networks "
            f"{single:.2f} %",
        ),
        *(
            grid.rising(results, label, f"For CNNs, {label} improves with the number of channels.")
            for label in PAPER_METHODS
        ),
    ]


def resnet_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    other = vggs(grid.scale)
    losses = _loss(grid, results), _loss(other, results)
    zero, single = grid.mean(results, PARTIAL, 0.0), fmean(grid.alone(results))
    return [
        Verdict.of(
            "Completely fused ResNet-18 are close to the single networks (within five points).",
            [losses[0] < 5],
            f"OT fusion {zero:.2f} %, single networks {single:.2f} %: {-losses[0]:+.2f} points",
        ),
        Verdict.of(
            "They lose much less than completely fused VGG-11.",
            [losses[0] < losses[1] / 2],
            f"ResNet-18 {-losses[0]:+.2f} points, VGG-11 {-losses[1]:+.2f}",
        ),
        grid.rising(results, PARTIAL, "Partial fusion of ResNet-18 interpolates between OT fusion and the ensemble."),
    ]


def hard_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    losses = _loss(grid, results), _loss(resnets(grid.scale), results)
    curve = {alpha: grid.mean(results, PARTIAL, alpha) for alpha in grid.alphas}
    recovered = {a: (found - curve[0.0]) / (curve[1.0] - curve[0.0]) for a, found in curve.items() if 0 < a < 1}
    return [
        Verdict.of(
            "Networks trained with less weight decay and larger batches are harder to fuse.",
            [losses[0] > losses[1]],
            f"OT fusion {-losses[0]:+.2f} points relative to the single networks, with more weight decay "
            f"{-losses[1]:+.2f} (paper: about −15 and a minor decrease)",
        ),
        grid.rising(results, PARTIAL, "Partial fusion still interpolates monotonically."),
        Verdict.of(
            "Moderate values of α already recover much of the lost accuracy (a larger part than α).",
            [part > alpha for alpha, part in recovered.items()],
            "part of the gap to the ensemble: "
            + ", ".join(f"{100 * part:.0f} % (α = {a:g})" for a, part in recovered.items()),
        ),
    ]


def _ahead(grid: Grid, results: Results, one: str, other: str, claim: str) -> Verdict:
    """Whether a method is ahead of another at equal shares, at every size below the ensemble's."""
    gaps = {a: grid.mean(results, one, a) - grid.mean(results, other, a) for a in grid.fused_alphas}
    listed = ", ".join(f"{gap:+.2f} (α = {a:g})" for a, gap in gaps.items())
    return Verdict.of(claim, [gap > 0 for gap in gaps.values()], f"points at equal shares: {listed}")


def _loss(grid: Grid, results: Results) -> float:
    """How far OT fusion at equal shares is below the single networks, in points."""
    return fmean(grid.alone(results)) - grid.mean(results, PARTIAL, 0.0)


def _losses(grid: Grid) -> list[Cell]:
    """The cells behind `_loss`."""
    return [
        cell
        for pair in grid.pairs
        for cell in (grid.parents(pair), grid.cell(pair, grid.all_methods[PARTIAL], 0.0, EQUAL))
    ]


def split_mlps(scale: Scale) -> Grid:
    return Grid(mnist_pairs(True, scale), PAPER_METHODS | OUR_METHODS, alphas(scale), shares(scale), scale)


def mlps(scale: Scale) -> Grid:
    return Grid(mnist_pairs(False, scale), PAPER_METHODS, alphas(scale), shares(scale), scale, equal_only=OUR_METHODS)


def vggs(scale: Scale) -> Grid:
    return _cifar(scale, vgg_pairs(scale), VGG_METHODS, OUR_VGG_METHODS)


def resnets(scale: Scale) -> Grid:
    """Networks that are easy to fuse."""
    return _cifar(scale, resnet_pairs(scale), {PARTIAL: RECALIBRATED}, OUR_CIFAR_METHODS)


def hard_resnets(scale: Scale) -> Grid:
    """Little weight decay and large batches make networks that are hard to fuse."""
    return _cifar(scale, resnet_pairs(scale, hard=True), {PARTIAL: RECALIBRATED}, OUR_CIFAR_METHODS)


def _cifar(
    scale: Scale, pairs: list[Pair], methods: Mapping[str, MethodConfig], ours: Mapping[str, MethodConfig]
) -> Grid:
    factors = shares(scale, coarse=True)
    return Grid(pairs, methods, alphas(scale, coarse=True), factors, scale, equal_only=ours)


SPLIT_DATA = aggregation(
    "split_data",
    "Aggregation of two MLPs trained on different parts of MNIST",
    ("Figure 6",),
    "MNIST",
    split_mlps,
    split_claims,
)
SAME_DATA_MNIST = aggregation(
    "same_data_MNIST",
    "Aggregation of two MLPs trained on all of MNIST",
    ("Figure 10",),
    "MNIST",
    mlps,
    mlp_claims,
)
SAME_DATA = aggregation(
    "same_data",
    "Aggregation of two VGG-11 trained on CIFAR-10",
    ("Figure 11",),
    "CIFAR-10",
    vggs,
    vgg_claims,
    paper=(
        "At α = 0 and equal shares the paper reports 66.3 % for clustering and 30.7 % for unstructured pruning, and a "
        "gain of 1.8 points for partial OT fusion from α = 0 to 0.2; the rest is plotted without numbers."
    ),
)
RESNET_FUSION = aggregation(
    "resnet_fusion",
    "Partial fusion of two ResNet-18 trained on CIFAR-10",
    ("Figure 8",),
    "CIFAR-10",
    resnets,
    resnet_claims,
    beside=lambda scale: _losses(vggs(scale)),
    paper=(
        "The paper plots the curves without numbers; its OT fusion is close to the single networks (about 94.6 %). Its "
        "networks are four times as wide, and were trained to the end. How fusion gains with width is on the page of "
        "widths; three pairs, with error bars, on that of the same fusions of three pairs."
    ),
)
RESNET_FUSION_BAD = aggregation(
    "resnet_fusion_bad",
    "Partial fusion of two ResNet-18 trained with less weight decay",
    ("Figure 13",),
    "CIFAR-10",
    hard_resnets,
    hard_claims,
    beside=lambda scale: _losses(resnets(scale)),
    paper="The paper plots the curves without numbers; its OT fusion drops to about 80 % at equal shares.",
)
