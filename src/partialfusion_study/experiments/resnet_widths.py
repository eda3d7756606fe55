"""Our own experiment: how much accuracy fusing ResNet-18 costs, by their width."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from ..cell import Cell
from ..methods import OURS_REFIT, RECALIBRATED, REFIT
from ..report import Figure, Line, Panel, Row, Table, Value
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .runs import measured
from .settings import NORMS_MEASURED, Scale, resnet_width_pairs, setting

WIDTHS = (8, 16, 32)
SIZES = (0.0, 0.2, 0.4, 1.0)
PARTIAL = "partial OT fusion"
METHODS = {PARTIAL: RECALIBRATED, "partial OT, refitted (ours)": REFIT, "clustering, refitted (ours)": OURS_REFIT}


def widths(scale: Scale) -> tuple[int, ...]:
    return (2, 4) if scale == "quick" else WIDTHS


def make_grids(scale: Scale) -> dict[int, Grid]:
    """Width → the grid of its pair."""
    sizes = (0.0, 1.0) if scale == "quick" else SIZES
    pairs = resnet_width_pairs(scale, widths(scale))
    return {pair.a.width: Grid([pair], METHODS, sizes, (EQUAL,), scale) for pair in pairs}


def cells(scale: Scale) -> list[Cell]:
    return [cell for grid in make_grids(scale).values() for cell in grid.cells()]


def report(scale: Scale, results: Results) -> Report:
    grids = make_grids(scale)
    losses = _losses(grids, results)
    (narrow, most), *_, (wide, least) = losses[PARTIAL].items()
    finding = (
        f"OT fusion (α = 0) loses {most[0.0]:.2f} points to the single networks at width {narrow}, and "
        f"{least[0.0]:.2f} at width {wide}."
    )
    pairs = [grid.pairs[0] for grid in grids.values()]
    text = (
        f"{setting(scale, pairs[:1], widths=list(grids))} {NORMS_MEASURED} There is one pair of each width. The "
        "networks are trained for fewer epochs than those of the other pages, so that the widest ones take a quarter "
        f"of an hour on one core: compare the widths with each other. {_found(losses[PARTIAL])}"
    )
    parts = (measured(results, lambda r: _table(grids, r)), measured(results, lambda r: _figure(grids, r)))
    return Report(finding, text, parts)


def _found(losses: dict[int, dict[float, float]]) -> str:
    """Whether what OT fusion loses falls with the width, in words."""
    sizes = next(iter(losses.values()))
    falling = [losses[wide][alpha] < losses[narrow][alpha] for alpha in sizes for narrow, wide in pairwise(losses)]
    listed = "; ".join(
        f"{', '.join(f'{loss[alpha]:.2f}' for loss in losses.values())} (α = {alpha:g})" for alpha in sizes
    )
    return (
        "The paper's table of widths is about MLPs, so there is no claim about ResNet-18 to judge. What partial OT "
        f"fusion loses to the single networks falls with the width in {sum(falling)} of {len(falling)} steps; in "
        f"points, from the narrowest to the widest: {listed}."
    )


def _losses(grids: dict[int, Grid], results: Results) -> dict[str, dict[int, dict[float, float]]]:
    """Method → width → alpha below 1 → how far the fused network is below the mean of the two alone, in points."""
    return {
        label: {
            width: {a: fmean(grid.alone(results)) - grid.mean(results, label, a) for a in grid.fused_alphas}
            for width, grid in grids.items()
        }
        for label in METHODS
    }


def _table(grids: dict[int, Grid], results: Results) -> Table:
    alone = [grid.alone(results) for grid in grids.values()]

    def row(name: str, label: str, alpha: float) -> Row:
        return (name, *(Value.of(grid.accuracies(results, label, alpha, EQUAL)) for grid in grids.values()))

    rows: list[Row] = [(f"model {name}", *(Value.of([both[k]]) for both in alone)) for k, name in enumerate("AB")]
    fused = next(iter(grids.values())).fused_alphas
    rows += [row(f"{label}, α = {alpha:g}", label, alpha) for label in METHODS for alpha in fused]
    rows.append(row("ensemble", PARTIAL, 1.0))
    return Table("widths", "Accuracy (%) at equal shares, by width", ("", *(f"width {w}" for w in grids)), tuple(rows))


def _figure(grids: dict[int, Grid], results: Results) -> Figure:
    losses = _losses(grids, results)
    panels = tuple(
        Panel(
            label,
            "width",
            "points below the single networks",
            tuple(
                Line.of(f"α = {alpha:g}", list(found), ([loss[alpha]] for loss in found.values()), colour=alpha)
                for alpha in next(iter(found.values()))
            ),
        )
        for label, found in losses.items()
    )
    return Figure("losses", "What fusing costs, by width", panels)


EXPERIMENT = Experiment(
    "resnet_widths",
    "What fusing ResNet-18 costs, by width (ours)",
    ("Table 2",),
    "CIFAR-10",
    cells,
    report,
)
