"""The comparison that the paper makes on several networks: partial OT, clustering and pruning of the ensemble."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

from ..cell import Cell
from ..ways import ACTIVATIONS, CLUSTER, CLUSTER_POST, OURS, OURS_REFIT, PARTIAL_OT, PRUNING, REFIT
from .experiment import Experiment, Results, Told
from .grids import EQUAL, Grid
from .settings import Scale
from .words import setting

PAPER_WAYS = {"partial OT fusion": PARTIAL_OT, "clustering": CLUSTER, "unstructured pruning": PRUNING}
OUR_WAYS = {
    "partial OT, refitted (ours)": REFIT,
    "clustering with exchange (ours)": OURS,
    "clustering with exchange, refitted (ours)": OURS_REFIT,
}
MNIST_WAYS = {**PAPER_WAYS, **OUR_WAYS}
VGG_WAYS = {**PAPER_WAYS, "clustering": CLUSTER_POST}
CIFAR_OURS = {"partial OT, activations": ACTIVATIONS, **OUR_WAYS}


def aggregation(
    name: str, title: str, labels: tuple[str, ...], data: str, layout: Callable[[Scale], Grid], *, paper: str = ""
) -> Experiment:
    """An experiment over a grid whose panels are the ways."""

    def grid(scale: Scale) -> list[Cell]:
        return layout(scale).cells()

    def tell(scale: Scale, results: Results) -> Told:
        own = layout(scale)
        table = own.table(results, "equal", "Accuracy (%) at equal shares", note=paper)
        parts = (*own.figures(results, title), table, own.reference(results))
        return Told(_finding(own, results), setting(scale, own.pairs), parts)

    return Experiment(name, title, labels, data, grid, tell)


def _finding(own: Grid, results: Results) -> str:
    """The first and the best way at the smallest size, and the ensemble."""
    at_zero = {label: fmean(own.accuracies(results, label, own.alphas[0], EQUAL)) for label in own.all_ways}
    first, best = next(iter(own.ways)), max(at_zero, key=lambda label: at_zero[label])
    top = fmean(own.accuracies(results, first, 1.0, EQUAL))
    rising = [fmean(own.accuracies(results, first, a, EQUAL)) for a in own.alphas]
    steps = sum(b >= a for a, b in pairwise(rising))
    return (
        f"At one model's size and equal shares: {first} {at_zero[first]:.2f} %, best is {best} with "
        f"{at_zero[best]:.2f} %; ensemble {top:.2f} %. {first[0].upper() + first[1:]} rises with alpha in {steps} of "
        f"{len(rising) - 1} steps. {own.overall(results)}"
    )
