"""VGG-11 with one, two or three layers left isolated and the rest merged: accuracy against the channels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ..cell import Cell
from ..methods import CLUSTER_POST, PARTIAL_OT, PRUNING, REFIT
from ..report import Figure, Line, Panel, Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import ACCURACY, EQUAL, Grid
from .runs import measured
from .settings import ALPHAS, Scale, alphas, setting, vgg_pairs

CHANNELS = "channels, relative to one model"
LAYERS = ("features.3", "features.6", "features.8")  # the paper's layers 2, 3 and 4
METHODS = {
    "partial OT fusion": PARTIAL_OT,
    "clustering": CLUSTER_POST,
    "unstructured pruning": PRUNING,
    "partial OT, refitted (ours)": REFIT,
}


def make_grid(scale: Scale, fixed: int) -> Grid:
    return Grid(vgg_pairs(scale), METHODS, alphas(scale), (EQUAL,), scale, fixed=LAYERS[:fixed])


def cells(scale: Scale) -> list[Cell]:
    return [cell for count in range(4) for cell in make_grid(scale, count).cells()]


def cells_of_three(scale: Scale) -> list[Cell]:
    return make_grid(scale, 3).cells()


def line(scale: Scale, results: Results, label: str, fixed: int, name: str) -> Line:
    """Accuracy at equal shares against the channels, up to the ensemble."""
    grid = make_grid(scale, fixed)
    xs = [
        fmean(f["channels"] for f in grid.found(results, label, alpha, EQUAL)) if alpha < 1 else 2.0
        for alpha in grid.alphas
    ]
    return Line.of(name, xs, (grid.accuracies(results, label, alpha, EQUAL) for alpha in grid.alphas))


def level(scale: Scale, results: Results) -> Line:
    """The better of the two networks."""
    grid = make_grid(scale, 3)
    best = fmean(max(results(grid.parents(pair))["a"], results(grid.parents(pair))["b"]) for pair in grid.pairs)
    return Line("better single network", (1.0,), (best,), style="dotted")


def panel(scale: Scale, results: Results, label: str) -> Panel:
    """A line per number of fixed layers."""
    lines = [line(scale, results, label, k, f"{k} fixed" if k else "none fixed") for k in range(4)]
    return Panel(label, CHANNELS, ACCURACY, (*lines, level(scale, results)))


def gained(scale: Scale, results: Results, label: str, fixed: int) -> list[float]:
    """The gain of fixed layers over none, in points, at every size below the ensemble's."""
    some, none = make_grid(scale, fixed), make_grid(scale, 0)
    return [some.mean(results, label, a) - none.mean(results, label, a) for a in none.fused_alphas]


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    names = list(METHODS)[:3]
    three, one = ({label: gained(scale, results, label, k) for label in names} for k in (3, 1))
    return [
        *(
            Verdict.of(
                f"Three fixed layers improve {label}.",
                [gain > 0 for gain in gains],
                "points over none fixed: " + ", ".join(f"{gain:+.1f}" for gain in gains),
                cases="sizes",
            ).among("α", ALPHAS[:-1], make_grid(scale, 0).fused_alphas)
            for label, gains in three.items()
        ),
        Verdict.of(
            "One fixed layer gives mixed results: it improves pruning, and is unclear for the others.",
            [fmean(one[names[2]]) > 0, *(min(one[label]) < 0 < max(one[label]) for label in names[:2])],
            "range of the gains in points: "
            + ", ".join(f"{label} {min(gains):+.1f} to {max(gains):+.1f}" for label, gains in one.items()),
            cases="methods",
        ).among("α", ALPHAS[:-1], make_grid(scale, 0).fused_alphas),
    ]


def exceeds(scale: Scale, results: Results) -> float | None:
    """The channels from which on partial OT fusion with three fixed layers is better than the better network."""
    curve, single = line(scale, results, "partial OT fusion", 3, ""), level(scale, results).y[0]
    above = [all(y > single for y in curve.y[k:]) for k in range(len(curve.y))]
    return next((x for x, better in zip(curve.x, above, strict=True) if better), None)


def claims_of_three(scale: Scale, results: Results) -> Sequence[Verdict]:
    found = exceeds(scale, results)
    return [
        Verdict.of(
            "With three fixed layers, partial fusion exceeds both networks, with only 38 % more channels.",
            [found is not None and found < 2, found is not None and found < 1.45],
            f"from {found:.2f} times the channels on" if found is not None else "at no size",
            cases="parts of the claim",
        ),
    ]


def report(scale: Scale, results: Results) -> Report:
    gains = {label: fmean(gained(scale, results, label, 3)) for label in METHODS}
    listed = ", ".join(f"{label} {gain:+.1f}" for label, gain in gains.items())
    first, second, *_ = gains.items()
    finding = (
        "Three fixed layers gain, in points over none and on average over α below 1: "
        f"{first[0]} {first[1]:+.1f}, {second[0]} {second[1]:+.1f}."
    )
    text = (
        f"{setting(scale, vgg_pairs(scale))} The fixed layers are {', '.join(LAYERS)}, in this order: the paper's "
        f"layers 2, 3 and 4. Gain of three fixed layers over none in points, averaged over α below 1: {listed}."
    )
    parts = (measured(results, lambda r: _figure(scale, r)), measured(results, lambda r: _table(scale, r)))
    return Report(finding, text, parts)


def _figure(scale: Scale, results: Results) -> Figure:
    panels = tuple(panel(scale, results, label) for label in METHODS)
    return Figure("panels", "Some layers left isolated", panels, columns=2)


def _table(scale: Scale, results: Results) -> Table:
    rows: list[Row] = []
    for count in range(4):
        grid = make_grid(scale, count)
        for label in METHODS:
            values = [Value.of(grid.accuracies(results, label, a, EQUAL)) for a in grid.alphas]
            rows.append((f"{count}", label, *values))
    columns = ("fixed layers", "method", *(f"α = {a:g}" for a in make_grid(scale, 0).alphas))
    return Table("fixed", "Accuracy (%) at equal shares; alpha applies to the other layers", columns, tuple(rows))


def report_of_three(scale: Scale, results: Results) -> Report:
    above = exceeds(scale, results)
    where = f"from {above:.2f}× the channels on" if above is not None else "at no size"
    finding = f"Partial OT fusion is better than the better single network {where} (paper: from 1.38×)."
    figure = measured(results, lambda r: _figure_of_three(scale, r))
    return Report(finding, setting(scale, vgg_pairs(scale)), (figure,))


def _figure_of_three(scale: Scale, results: Results) -> Figure:
    lines = [line(scale, results, label, 3, label) for label in METHODS]
    whole = Panel("three layers fixed", CHANNELS, ACCURACY, (*lines, level(scale, results)))
    return Figure("all", "Three layers left isolated", (whole,))


FIX_SAME_DATA = Experiment(
    "fix_same_data", "VGG-11 with fixed layers", ("Figure 7",), "CIFAR-10", cells, report, claims
)
FIXED_ALL = Experiment(
    "fixed_all",
    "All methods with three fixed layers",
    ("Figure 12",),
    "CIFAR-10",
    cells_of_three,
    report_of_three,
    claims_of_three,
)
