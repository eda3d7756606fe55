"""The paper's first figure: partial fusion between averaging and ensemble, and pruning of one network."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..methods import AVERAGE, OURS_REFIT, PARTIAL_OT, REFIT
from ..report import Figure, Panel, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import ACCURACY, FACTOR, Grid
from .pruning import Pruning
from .runs import measured
from .settings import Scale, mnist_pairs, setting, shares

SIZE = 0.4
PIXELS, CLASSES = 784, 10  # of MNIST
PARTIAL = "partial OT fusion"


def overview(scale: Scale) -> Grid:
    methods = {
        "naive averaging": AVERAGE,
        PARTIAL: PARTIAL_OT,
        "partial OT, refitted (ours)": REFIT,
        "clustering with exchange, refitted (ours)": OURS_REFIT,
    }
    return Grid(mnist_pairs(True, scale), methods, (0.0, SIZE, 1.0), shares(scale), scale)


def pruning(scale: Scale) -> Pruning:
    return Pruning([pair.a for pair in mnist_pairs(False, scale)], scale)


def cells(scale: Scale) -> list[Cell]:
    return [c for c in overview(scale).cells() if not _skipped(c)] + pruning(scale).cells()


def _skipped(cell: object) -> bool:
    """Naive averaging is the same at every alpha."""
    return getattr(cell, "config", None) == AVERAGE and getattr(cell, "alpha", 0.0) > 0


def report(scale: Scale, results: Results) -> Report:
    grid, single = overview(scale), pruning(scale)
    ratio = Value.of([f["ratio"] for f in grid.found(results, PARTIAL, SIZE, 0.5)], paper="1.45")
    best = max(grid.shares, key=lambda s: grid.mean(results, PARTIAL, SIZE, s))
    low, mid, top = (grid.mean(results, PARTIAL, a) for a in grid.alphas)
    nearer = "the ensemble than to OT fusion" if top - mid < mid - low else "OT fusion than to the ensemble"
    finding = (
        f"With {ratio.mean:.2f} times the effective parameters of one model ({dense(grid, SIZE):.2f} times as a dense "
        f"network), partial fusion is closer to {nearer}."
    )
    accuracies = f"At equal shares OT fusion has {low:.2f} %, partial fusion {mid:.2f} % and the ensemble {top:.2f} %."
    text = (
        f"{setting(scale, grid.pairs)} The best share of B for partial fusion on the test images is {best:g}, which "
        f"is only reported. {accuracies} Effective parameters are those outside of zero blocks. The networks that are "
        "pruned alone were trained on all of MNIST."
    )
    parts = (
        measured(results, lambda r: _figure(grid, r)),
        measured(results, lambda r: _table(grid, r, ratio)),
        single.figure(results),
        single.table(results),
    )
    return Report(finding, text, parts)


def dense(grid: Grid, alpha: float) -> float:
    """The weights of a fused MLP with its zero blocks, relative to one model."""
    width = grid.pairs[0].b.width

    def weights(hidden: int) -> int:
        return (PIXELS + CLASSES) * hidden + 2 * hidden**2

    return weights(width + round(alpha * width)) / weights(width)


def _figure(grid: Grid, results: Results) -> Figure:
    lines = (
        grid.line(results, PARTIAL, 0.0, "OT fusion (α = 0)"),
        grid.line(results, PARTIAL, SIZE, f"partial OT fusion (α = {SIZE:g})"),
        grid.line(results, "partial OT, refitted (ours)", SIZE, f"the same, refitted (α = {SIZE:g}, ours)"),
        grid.line(results, "clustering with exchange, refitted (ours)", 0.0, "clustered, refitted (α = 0, ours)"),
        grid.line(results, PARTIAL, 1.0, "ensemble"),
    )
    return Figure("overview", "Two MLPs that know different digits", (Panel("", FACTOR, ACCURACY, lines),))


def _table(grid: Grid, results: Results, ratio: Value) -> Table:
    rows = (
        ("effective parameters relative to one model", ratio),
        ("dense parameters relative to one model", Value.of([dense(grid, SIZE)])),
        ("accuracy, naive averaging", Value.of(grid.accuracies(results, "naive averaging", 0.0, 0.5))),
        ("accuracy, OT fusion", Value.of(grid.accuracies(results, PARTIAL, 0.0, 0.5))),
        (
            f"accuracy, partial OT fusion at α = {SIZE:g}",
            Value.of(grid.accuracies(results, PARTIAL, SIZE, 0.5)),
        ),
        ("the same, refitted", Value.of(grid.accuracies(results, "partial OT, refitted (ours)", SIZE, 0.5))),
        ("accuracy, ensemble", Value.of(grid.accuracies(results, PARTIAL, 1.0, 0.5))),
    )
    return Table("numbers", "At equal shares", ("", "value"), rows)


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    grid, single = overview(scale), pruning(scale)
    nearer = []
    for share in grid.between:
        low, mid, top = (grid.mean(results, PARTIAL, a, share) for a in grid.alphas)
        nearer.append(top - mid < mid - low)
    ratio = Value.of(f["ratio"] for f in grid.found(results, PARTIAL, SIZE, 0.5)).mean
    low, mid, top = (grid.mean(results, PARTIAL, a) for a in grid.alphas)
    return [
        Verdict.of(
            "At α = 0.4 partial OT fusion is closer to the ensemble than to OT fusion.",
            nearer,
            f"equal shares: {low:.2f}, {mid:.2f} and {top:.2f} %",
            cases="shares between 0 and 1",
        ),
        Verdict.of(
            "It has about 1.45 times the parameters of one network.",
            [abs(ratio - 1.45) < 0.05],
            f"{ratio:.2f} times in effective parameters",
        ),
        *single.claims(results, "MLPs"),
        single.regimes(results),
    ]


EXPERIMENT = Experiment(
    "main_result",
    "Overview: model aggregation and generalised pruning",
    ("Figure 1 (a)", "Figure 1 (b)"),
    "MNIST",
    cells,
    report,
    claims,
)
