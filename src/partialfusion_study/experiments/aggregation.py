"""The comparison that the paper makes on several networks: partial OT, clustering and pruning of the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
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
from .grids import EQUAL, Grid, with_spread
from .settings import (
    ALPHAS,
    NORMS_MEASURED,
    Scale,
    alphas,
    mnist_pairs,
    resnet_pairs,
    setting,
    shares,
    vgg_pairs,
)

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
    norms: str = "",
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
        norms: how the statistics of batch norms are found.
        beside: cells of other grids that the verdicts look at.
    """

    def cells(scale: Scale) -> list[Cell]:
        return [*make_grid(scale).cells(), *beside(scale)]

    def report(scale: Scale, results: Results) -> Report:
        grid = make_grid(scale)
        table = grid.table(results, "equal", "Accuracy (%) at equal shares", note=paper)
        parts = (*grid.figures(results, title), table, grid.reference(results))
        text = f"{' '.join(filter(None, (setting(scale, grid.pairs), norms)))}\n\n{_details(grid, results)}"
        return Report(_finding(grid, results), text, parts)

    def judged(scale: Scale, results: Results) -> Sequence[Verdict]:
        return claims(make_grid(scale), results)

    return Experiment(name, title, references, data, cells, report, judged)


def _finding(grid: Grid, results: Results) -> str:
    """The first method at the smallest size, and the ensemble."""
    first = next(iter(grid.methods))
    low, top = (grid.mean(results, first, alpha) for alpha in (grid.alphas[0], 1.0))
    return f"At the size of one model and equal shares, {first} has {low:.2f} %; the ensemble has {top:.2f} %."


def _details(grid: Grid, results: Results) -> str:
    """The finding, the best method at the smallest size, and in how many steps the accuracy rises."""
    at_zero = {label: grid.mean(results, label, grid.alphas[0]) for label in grid.all_methods}
    first, best = next(iter(grid.methods)), max(at_zero, key=lambda label: at_zero[label])
    equal, every = (grid.steps(results, first, shares) for shares in ([EQUAL], grid.between))
    return (
        f"{_finding(grid, results)} The best method at this size is {best} with {at_zero[best]:.2f} %. The accuracy of "
        f"{first} rises with α in {sum(equal)} of {len(equal)} steps at equal shares, and in {sum(every)} of "
        f"{len(every)} at all shares between 0 and 1. {grid.overall(results)}"
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
    single = max(grid.alone(results))
    best = {alpha: max((grid.mean(results, PARTIAL, alpha, s), s) for s in grid.between) for alpha in grid.fused_alphas}
    return [
        Verdict.of(
            "Fusion can give a network that is better than both, at some interpolation factor (Section 3.1).",
            [accuracy > single for accuracy, _ in best.values()],
            f"the better network {single:.2f} %; partial OT at the share of B that is best on the test images: "
            + ", ".join(f"{accuracy:.2f} % (α = {a:g}, share {s:g})" for a, (accuracy, s) in best.items()),
            cases="sizes",
        ),
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
            cases="sizes",
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
            cases="sizes",
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
        _efficient(grid, results),
    ]


def _efficient(grid: Grid, results: Results) -> Verdict:
    """Whether little is paid for much: near α = 0 by adding channels, near α = 1 by leaving some out."""
    held, listed = [], []
    for alpha in (0.2, 0.8):
        found = []
        for label in PAPER_METHODS:
            low, here, top = (grid.mean(results, label, a) for a in (0.0, alpha, 1.0))
            ratios = (fmean(f["ratio"] for f in grid.found(results, label, a, EQUAL)) for a in (0.0, alpha))
            start, size = ratios
            closed, added = (here - low) / (top - low), (size - start) / (2 - start)
            held.append(closed > added)
            found.append(f"{label} {100 * closed:.0f} % for {100 * added:.0f} %")
        listed.append(f"{', '.join(found)} (α = {alpha:g})")
    return Verdict.of(
        "The trade-off is still often efficient, particularly where α is near 0 or 1: a larger part of the gap from α "
        "= 0 to the ensemble is closed than of the effective parameters between them is added.",
        held,
        f"equal shares: {'; '.join(listed)}",
        often=True,
    )


def vgg_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    zero, little = (grid.accuracies(results, PARTIAL, a, EQUAL) for a in (0.0, 0.2))
    clustered, pruned = (grid.accuracies(results, label, 0.0, EQUAL) for label in (CLUSTERING, PRUNED))
    gained = [b - a for a, b in zip(zero, little, strict=True)]
    single = fmean(grid.alone(results))
    return [
        _ahead(grid, results, PARTIAL, CLUSTERING, "For CNNs, partial OT fusion outperforms clustering."),
        _ahead(grid, results, PARTIAL, PRUNED, "For CNNs, partial OT fusion outperforms unstructured pruning."),
        Verdict.of(
            "At α = 0 OT fusion is much better than clustering (by more than five points).",
            [fmean(zero) - fmean(clustered) > 5],
            f"{grid.over}: OT fusion {with_spread(zero)} %, clustering {with_spread(clustered)} % (paper: 66.3 %)",
        ),
        Verdict.of_size(
            "20 % more neurons improve OT fusion by 1.8 points.",
            fmean(gained),
            1.8,
            f"{grid.over}: {with_spread(gained, '+')} points",
        ),
        Verdict.of(
            "At α = 0 clustering and especially pruning fail to preserve the accuracy.",
            [fmean(clustered) < single - 5, fmean(pruned) < fmean(clustered)],
            f"{grid.over}: clustering {with_spread(clustered)} % (paper: 66.3 %), pruning {with_spread(pruned)} % "
            f"(paper: 30.7 %), single networks {single:.2f} %",
            cases="parts of the claim",
        ),
        *(
            grid.rising(results, label, f"For CNNs, {label} improves with the number of channels.")
            for label in PAPER_METHODS
        ),
        _rising_in_pairs(grid, results),
    ]


def resnet_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    other = vggs(grid.scale)
    lost, others = (every.losses(results, PARTIAL) for every in (grid, other))
    zero, single = grid.accuracies(results, PARTIAL, 0.0, EQUAL), fmean(grid.alone(results))
    return [
        Verdict.of(
            "Completely fused ResNet-18 are close to the single networks (within five points).",
            [fmean(lost) < 5],
            f"{grid.over}: OT fusion {with_spread(zero)} %, single networks {single:.2f} %: {_below(lost)}",
        ),
        Verdict.of(
            "They lose much less than completely fused VGG-11.",
            [fmean(lost) < fmean(others) / 2],
            f"ResNet-18 {_below(lost)} ({grid.over}), VGG-11 {_below(others)} ({other.over})",
        ),
        grid.rising(results, PARTIAL, "Partial fusion of ResNet-18 interpolates between OT fusion and the ensemble."),
        _rising_in_pairs(grid, results),
    ]


def hard_claims(grid: Grid, results: Results) -> Sequence[Verdict]:
    easy = resnets(grid.scale)
    lost, others = (every.losses(results, PARTIAL) for every in (grid, easy))
    curve = {alpha: grid.mean(results, PARTIAL, alpha) for alpha in grid.alphas}
    recovered = {a: (found - curve[0.0]) / (curve[1.0] - curve[0.0]) for a, found in curve.items() if 0 < a < 1}
    return [
        Verdict.of(
            "Networks trained with less weight decay and larger batches are harder to fuse.",
            [fmean(lost) > fmean(others)],
            f"OT fusion {_below(lost)} relative to the single networks ({grid.over}), with more weight decay "
            f"{_below(others)} ({easy.over}; paper: about -15 and a minor decrease)",
        ),
        grid.rising(results, PARTIAL, "Partial fusion still interpolates monotonically."),
        _rising_in_pairs(grid, results),
        Verdict.of(
            "Moderate values of α already recover much of the lost accuracy (a larger part than α).",
            [part > alpha for alpha, part in recovered.items()],
            "part of the gap to the ensemble: "
            + ", ".join(f"{100 * part:.0f} % (α = {a:g})" for a, part in recovered.items()),
            cases="sizes",
        ).among("α", ALPHAS[1:-1], recovered),
    ]


def _rising_in_pairs(grid: Grid, results: Results) -> Verdict:
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


def _ahead(grid: Grid, results: Results, one: str, other: str, claim: str) -> Verdict:
    """Whether a method is ahead of another at equal shares, at every size below the ensemble's."""
    gaps = {a: grid.gaps(results, one, other, a) for a in grid.fused_alphas}
    listed = ", ".join(f"{with_spread(found, '+')} (α = {a:g})" for a, found in gaps.items())
    figures = f"points at equal shares, {grid.over}: {listed}"
    return Verdict.of(claim, [fmean(found) > 0 for found in gaps.values()], figures, cases="sizes").among(
        "α", ALPHAS[:-1], gaps
    )


def _below(lost: Sequence[float]) -> str:
    """What is lost, in points, as a negative number."""
    return f"{with_spread([-points for points in lost], '+')} points"


def _losses(grid: Grid) -> list[Cell]:
    """The cells behind what OT fusion loses at equal shares."""
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
    return Grid(pairs, methods, alphas(scale), shares(scale, coarse=True), scale, equal_only=ours)


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
    norms=NORMS_MEASURED,
    beside=lambda scale: _losses(vggs(scale)),
    paper=(
        "The paper plots the curves without numbers; its OT fusion is close to the single networks (about 94.6 %). Its "
        "networks are four times as wide, and were trained to the end. [How fusion gains with "
        "width](resnet_widths.md) is on a page of its own."
    ),
)
RESNET_FUSION_BAD = aggregation(
    "resnet_fusion_bad",
    "Partial fusion of two ResNet-18 trained with less weight decay",
    ("Figure 13",),
    "CIFAR-10",
    hard_resnets,
    hard_claims,
    norms=NORMS_MEASURED,
    beside=lambda scale: _losses(resnets(scale)),
    paper="The paper plots the curves without numbers; its OT fusion drops to about 80 % at equal shares.",
)
