"""ZipIt seen as a clustering of the ensemble's channels."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..methods import CLUSTER, OURS, ZIP
from ..report import Figure, Line
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .settings import Scale, alphas, mnist_pairs, setting, shares


def make_grid(scale: Scale) -> Grid:
    equal_only = {"ZipIt": ZIP, "clustering with exchange (ours)": OURS}
    return Grid(
        mnist_pairs(False, scale), {"clustering": CLUSTER}, alphas(scale), shares(scale), scale, equal_only=equal_only
    )


def cells(scale: Scale) -> list[Cell]:
    return make_grid(scale).cells()


def report(scale: Scale, results: Results) -> Report:
    grid = make_grid(scale)
    panel = grid.panel(results, "clustering", title="clustering (lines) and ZipIt (points)")
    points = [
        Line("ZipIt", (EQUAL,), (fmean(grid.accuracies(results, "ZipIt", a, EQUAL)),), style="points", colour=a)
        for a in grid.alphas
        if a < 1
    ]
    both = type(panel)(panel.title, panel.x_label, panel.y_label, (*panel.lines, *points))
    figures = (
        Figure("zipit", "ZipIt among the clusterings", (both,)),
        Figure("equal-shares", "Equal shares", (grid.compared(results),)),
    )
    gaps = [
        fmean(grid.accuracies(results, "ZipIt", a, EQUAL)) - fmean(grid.accuracies(results, "clustering", a, EQUAL))
        for a in grid.alphas
        if a < 1
    ]
    finding = (
        f"ZipIt minus clustering at equal shares: {min(gaps):+.2f} to {max(gaps):+.2f} points, depending on the size."
    )
    table = grid.table(results, "equal", "Accuracy (%) at equal shares")
    return Report(finding, setting(scale, grid.pairs), (*figures, table))


EXPERIMENT = Experiment("zipitcomparison", "ZipIt as a clustering", ("fig:zipitcomparison",), "MNIST", cells, report)
