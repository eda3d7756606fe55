"""ZipIt seen as a clustering of the ensemble's channels."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..methods import CLUSTER, OURS, ZIP
from ..report import Figure, Line, Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .runs import measured
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
    figures = (measured(results, lambda r: _figure(grid, r)), grid.equal_figure(results, "Equal shares"))
    gaps = _gaps(grid, results).values()
    finding = (
        f"ZipIt minus clustering at equal shares: {min(gaps):+.2f} to {max(gaps):+.2f} points, depending on the size."
    )
    table = grid.table(results, "equal", "Accuracy (%) at equal shares")
    return Report(finding, setting(scale, grid.pairs), (*figures, table))


def _figure(grid: Grid, results: Results) -> Figure:
    panel = grid.panel(results, "clustering", title="clustering (lines) and ZipIt (points)")
    points = [
        Line("ZipIt", (EQUAL,), (grid.mean(results, "ZipIt", a),), style="points", colour=a) for a in grid.fused_alphas
    ]
    both = type(panel)(panel.title, panel.x_label, panel.y_label, (*panel.lines, *points))
    return Figure("zipit", "ZipIt among the clusterings", (both,))


def _gaps(grid: Grid, results: Results) -> dict[float, float]:
    """Alpha → ZipIt minus clustering at equal shares, in points."""
    return {a: grid.mean(results, "ZipIt", a) - grid.mean(results, "clustering", a) for a in grid.fused_alphas}


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    gaps = _gaps(make_grid(scale), results)
    listed = ", ".join(f"{gap:+.2f} (α = {a:g})" for a, gap in gaps.items())
    return [
        Verdict.of(
            "ZipIt, seen as a clustering, is comparable to hierarchical clustering (within one point).",
            [abs(gap) < 1 for gap in gaps.values()],
            f"ZipIt minus clustering in points: {listed}",
            cases="sizes",
        ),
        Verdict.of(
            "It is slightly lower.", [gap < 0 for gap in gaps.values()], f"the same figures: {listed}", cases="sizes"
        ),
    ]


EXPERIMENT = Experiment("zipitcomparison", "ZipIt as a clustering", ("Figure 15",), "MNIST", cells, report, claims)
