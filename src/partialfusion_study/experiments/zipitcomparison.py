"""ZipIt seen as a clustering of the ensemble's channels."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..report import Figure, Line
from ..ways import CLUSTER, OURS, ZIP
from .experiment import Experiment, Results, Told
from .grids import EQUAL, Grid
from .settings import Scale, alphas, mnist_pairs, shares
from .words import setting


def layout(scale: Scale) -> Grid:
    midway = {"ZipIt": ZIP, "clustering with exchange (ours)": OURS}
    return Grid(mnist_pairs(False, scale), {"clustering": CLUSTER}, alphas(scale), shares(scale), scale, midway=midway)


def grid(scale: Scale) -> list[Cell]:
    return layout(scale).cells()


def tell(scale: Scale, results: Results) -> Told:
    own = layout(scale)
    panel = own.panel(results, "clustering", title="clustering (lines) and ZipIt (points)")
    points = [
        Line("ZipIt", (EQUAL,), (fmean(own.accuracies(results, "ZipIt", a, EQUAL)),), style="points", colour=a)
        for a in own.alphas
        if a < 1
    ]
    both = type(panel)(panel.title, panel.x_label, panel.y_label, (*panel.lines, *points))
    figures = (
        Figure("zipit", "ZipIt among the clusterings", (both,)),
        Figure("equal-shares", "Equal shares", (own.compared(results),)),
    )
    gaps = [
        fmean(own.accuracies(results, "ZipIt", a, EQUAL)) - fmean(own.accuracies(results, "clustering", a, EQUAL))
        for a in own.alphas
        if a < 1
    ]
    finding = f"ZipIt minus clustering at equal shares: {min(gaps):+.2f} to {max(gaps):+.2f} points over the sizes."
    table = own.table(results, "equal", "Accuracy (%) at equal shares")
    return Told(finding, setting(scale, own.pairs), (*figures, table))


EXPERIMENT = Experiment("zipitcomparison", "ZipIt as a clustering", ("fig:zipitcomparison",), "MNIST", grid, tell)
