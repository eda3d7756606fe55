"""How much accuracy fusing MLPs costs, by their width."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..methods import AVERAGE, OURS_REFIT, PARTIAL_OT, REFIT
from ..report import Figure, Line, Panel, Table, Value
from .experiment import Experiment, Report, Results
from .grids import ACCURACY, EQUAL, Grid
from .settings import Scale, mnist_pairs, setting

WIDTHS = (25, 50, 100, 200, 400)
SIZES = (0.0, 0.2, 0.4, 0.5, 0.8, 1.0)
PARTIAL, NAIVE = "partial OT fusion", "naive averaging"
OURS = {"partial OT, refitted (ours)": REFIT, "clustered and refitted (ours)": OURS_REFIT}
PAPER = {
    "model A": (95.2, 96.2, 97.0, 97.1, 97.2),
    "model B": (94.9, 96.4, 97.1, 97.1, 97.4),
    NAIVE: (20.6, 43.0, 60.6, 75.2, 56.5),
    0.0: (64.7, 91.0, 95.8, 97.0, 97.2),
    0.2: (81.1, 94.5, 96.8, 97.5, 97.7),
    0.4: (85.0, 95.6, 97.0, 97.6, 97.9),
    0.5: (88.8, 95.6, 97.2, 97.6, 97.9),
    0.8: (94.5, 96.6, 97.6, 97.8, 97.9),
    1.0: (95.8, 96.9, 97.7, 97.8, 97.9),
}


def widths(scale: Scale) -> tuple[int, ...]:
    return (8, 12) if scale == "quick" else WIDTHS


def make_grid(scale: Scale, width: int) -> Grid:
    pairs = mnist_pairs(False, scale, width=width, epochs=5)
    sizes = (0.0, 0.5, 1.0) if scale == "quick" else SIZES
    return Grid(pairs, {PARTIAL: PARTIAL_OT}, sizes, (EQUAL,), scale)


def ours(grid: Grid, label: str) -> list[Cell]:
    """Our methods at the size of one model."""
    return [grid.cell(pair, OURS[label], 0.0, EQUAL) for pair in grid.pairs]


def naive(grid: Grid) -> list[Cell]:
    return [grid.cell(pair, AVERAGE, 0.0, EQUAL) for pair in grid.pairs]


def cells(scale: Scale) -> list[Cell]:
    grids = [make_grid(scale, width) for width in widths(scale)]
    return [cell for grid in grids for cell in _all(grid)]


def _all(grid: Grid) -> list[Cell]:
    return [*grid.cells(), *naive(grid), *(cell for label in OURS for cell in ours(grid, label))]


def report(scale: Scale, results: Results) -> Report:
    grids = [make_grid(scale, width) for width in widths(scale)]
    rows = [_row("model A", [[results(o.parents(p))["a"] for p in o.pairs] for o in grids], "model A", scale)]
    rows.append(_row("model B", [[results(o.parents(p))["b"] for p in o.pairs] for o in grids], "model B", scale))
    rows.append(_row(NAIVE, [[results(c)["accuracy"] for c in naive(o)] for o in grids], NAIVE, scale))
    for alpha in grids[0].alphas:
        found = [grid.accuracies(results, PARTIAL, alpha, EQUAL) for grid in grids]
        rows.append(_row(f"α = {alpha:g}", found, alpha, scale))
    for label in OURS:
        found = [[results(cell)["accuracy"] for cell in ours(grid, label)] for grid in grids]
        rows.append(_row(f"{label}, α = 0", found, None, scale))
    columns = ("", *(f"width {w}" for w in widths(scale)))
    table = Table("capacity", "Accuracy (%) at equal shares by width of the hidden layers", columns, tuple(rows))
    return Report(
        _finding(scale, grids, results),
        setting(scale, grids[0].pairs, widths=widths(scale)),
        (table, _figure(scale, grids, results)),
    )


def _row(label: str, found: list[list[float]], published: str | float | None, scale: Scale) -> tuple[str | Value, ...]:
    paper = PAPER.get(published) if published is not None and scale != "quick" else None
    numbers = paper or [None] * len(found)
    return (label, *(Value.of(f, paper=p) for f, p in zip(found, numbers, strict=True)))


def _finding(scale: Scale, grids: list[Grid], results: Results) -> str:
    if scale == "quick":
        return "Quick settings."
    apart = [
        abs(fmean(grid.accuracies(results, PARTIAL, alpha, EQUAL)) - PAPER[alpha][k])
        for k, grid in enumerate(grids)
        if WIDTHS[k] >= 100
        for alpha in grid.alphas
    ]
    low = fmean(grids[0].accuracies(results, PARTIAL, 0.0, EQUAL))
    top = fmean(grids[0].accuracies(results, PARTIAL, 1.0, EQUAL))
    return (
        f"From width 100 on, the fused networks are within {max(apart):.2f} points of the paper's. At width "
        f"{WIDTHS[0]}, OT fusion has {low:.1f} % and the ensemble {top:.1f} %."
    )


def _figure(scale: Scale, grids: list[Grid], results: Results) -> Figure:
    xs = tuple(float(w) for w in widths(scale))
    lines = [
        Line(
            f"α = {alpha:g}",
            xs,
            tuple(fmean(grid.accuracies(results, PARTIAL, alpha, EQUAL)) for grid in grids),
            style="dashed" if alpha == 1 else "line",
            colour=alpha,
        )
        for alpha in grids[0].alphas
    ]
    panel = Panel("", "width of the hidden layers", ACCURACY, tuple(lines), log_x=True)
    return Figure("widths", "Partial fusion by width", (panel,))


EXPERIMENT = Experiment("capacity", "Capacity: partial fusion by width", ("tab:capacity",), "MNIST", cells, report)
