"""The comparison that the paper makes on several networks: partial OT, clustering and pruning of the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import fmean

from ..cell import Cell
from ..methods import (
    ACTIVATIONS,
    CLUSTER,
    CLUSTER_POST,
    OURS,
    OURS_REFIT,
    PARTIAL_OT,
    PRUNING,
    RECALIBRATED,
    REFIT,
    MethodConfig,
)
from ..recipes import Pair
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .settings import Scale, alphas, mnist_pairs, resnet_pairs, setting, shares, vgg_pairs

PAPER_METHODS = {"partial OT fusion": PARTIAL_OT, "clustering": CLUSTER, "unstructured pruning": PRUNING}
OUR_METHODS = {
    "partial OT, refitted (ours)": REFIT,
    "clustering with exchange (ours)": OURS,
    "clustering with exchange, refitted (ours)": OURS_REFIT,
}
VGG_METHODS = {**PAPER_METHODS, "clustering": CLUSTER_POST}
OUR_CIFAR_METHODS = {"partial OT, activations": ACTIVATIONS, **OUR_METHODS}


def aggregation(
    name: str, title: str, labels: tuple[str, ...], data: str, make_grid: Callable[[Scale], Grid], *, paper: str = ""
) -> Experiment:
    """An experiment over a grid, with a panel for each method; `paper` says what the paper reports."""

    def cells(scale: Scale) -> list[Cell]:
        return make_grid(scale).cells()

    def report(scale: Scale, results: Results) -> Report:
        grid = make_grid(scale)
        table = grid.table(results, "equal", "Accuracy (%) at equal shares", note=paper)
        parts = (*grid.figures(results, title), table, grid.reference(results))
        return Report(_finding(grid, results), setting(scale, grid.pairs), parts)

    return Experiment(name, title, labels, data, cells, report)


def _finding(grid: Grid, results: Results) -> str:
    """The first and the best method at the smallest size, and the ensemble."""
    at_zero = {label: fmean(grid.accuracies(results, label, grid.alphas[0], EQUAL)) for label in grid.all_methods}
    first, best = next(iter(grid.methods)), max(at_zero, key=lambda label: at_zero[label])
    top = fmean(grid.accuracies(results, first, 1.0, EQUAL))
    rising = [fmean(grid.accuracies(results, first, a, EQUAL)) for a in grid.alphas]
    steps = sum(b >= a for a, b in pairwise(rising))
    return (
        f"At the size of one model and equal shares, {first} reaches {at_zero[first]:.2f} % and the ensemble "
        f"{top:.2f} %; the best method is {best} with {at_zero[best]:.2f} %. The accuracy of {first} rises with alpha "
        f"in {steps} of {len(rising) - 1} steps. {grid.overall(results)}"
    )


def split_mlps(scale: Scale) -> Grid:
    return Grid(mnist_pairs(True, scale), PAPER_METHODS | OUR_METHODS, alphas(scale), shares(scale), scale)


def mlps(scale: Scale) -> Grid:
    return Grid(mnist_pairs(False, scale), PAPER_METHODS, alphas(scale), shares(scale), scale, equal_only=OUR_METHODS)


def vggs(scale: Scale) -> Grid:
    return _cifar(scale, vgg_pairs(scale), VGG_METHODS)


def resnets(scale: Scale) -> Grid:
    """Networks that are easy to fuse."""
    return _cifar(scale, resnet_pairs(scale), {"partial OT fusion": RECALIBRATED})


def hard_resnets(scale: Scale) -> Grid:
    """Little weight decay and large batches make networks that are hard to fuse."""
    return _cifar(scale, resnet_pairs(scale, hard=True), {"partial OT fusion": RECALIBRATED})


def _cifar(scale: Scale, pairs: list[Pair], methods: Mapping[str, MethodConfig]) -> Grid:
    factors = shares(scale, coarse=True)
    return Grid(pairs, methods, alphas(scale, coarse=True), factors, scale, equal_only=OUR_CIFAR_METHODS)


SPLIT_DATA = aggregation(
    "split_data",
    "Aggregation of two MLPs trained on different parts of MNIST",
    ("fig:split_data",),
    "MNIST",
    split_mlps,
)
SAME_DATA_MNIST = aggregation(
    "same_data_MNIST", "Aggregation of two MLPs trained on all of MNIST", ("fig:same_data_MNIST",), "MNIST", mlps
)
SAME_DATA = aggregation(
    "same_data",
    "Aggregation of two VGG-11 trained on CIFAR-10",
    ("fig:same_data",),
    "CIFAR-10",
    vggs,
    paper=(
        "At α = 0 and equal shares the paper reports 66.3 % for clustering and 30.7 % for unstructured pruning, and a "
        "gain of 1.8 points for partial OT fusion from α = 0 to 0.2; the rest is plotted without numbers."
    ),
)
RESNET_FUSION = aggregation(
    "resnet_fusion",
    "Partial fusion of two ResNet-18 trained on CIFAR-10",
    ("fig:resnet_fusion",),
    "CIFAR-10",
    resnets,
    paper="The paper plots the curves without numbers; its OT fusion is close to the single networks (about 94.6 %).",
)
RESNET_FUSION_BAD = aggregation(
    "resnet_fusion_bad",
    "Partial fusion of two ResNet-18 trained with less weight decay",
    ("fig:resnet_fusion_bad",),
    "CIFAR-10",
    hard_resnets,
    paper="The paper plots the curves without numbers; its OT fusion drops to about 80 % at equal shares.",
)
