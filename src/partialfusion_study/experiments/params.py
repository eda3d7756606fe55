"""Parameters between hidden layers: counted in merged networks, and the paper's bounds on them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ..cell import Cell
from ..cells import Counts
from ..methods import CLUSTER, OURS, PARTIAL_OT, PRUNING, MethodConfig
from ..report import Figure, Line, Panel, Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .runs import measured
from .settings import Scale, alphas, mnist_pairs, scaled, setting

METHODS: dict[str, MethodConfig] = {
    "pruning": PRUNING,
    "clustering": CLUSTER,
    "clustering with exchange (ours)": OURS,
    "partial fusion": PARTIAL_OT,
}
EXAMPLE_ALPHA = 0.5


def bounds(label: str, alpha: float) -> tuple[float, float]:
    """The paper's best and worst case, relative to one model's layer."""
    best, worst = 2 * ((1 + alpha) / 2) ** 2, 1 - alpha**2 + 2 * alpha
    if label == "pruning":
        return best, 1 + alpha**2
    return (worst, worst) if label == "partial fusion" else (best, worst)


def counts(label: str, scale: Scale, alpha: float) -> list[Counts]:
    """One cell per pair."""
    return [Counts(pair, scaled(METHODS[label], scale), alpha) for pair in mnist_pairs(True, scale)]


def counted(results: Results, label: str, scale: Scale, alpha: float) -> list[float]:
    """One number per pair: the mean over the layers between hidden ones."""
    return [fmean(results(cell)["hidden"]) for cell in counts(label, scale, alpha)]


def whole(results: Results, label: str, scale: Scale, alpha: float) -> list[float]:
    """One number per pair, of the whole network."""
    return [results(cell)["ratio"] for cell in counts(label, scale, alpha)]


def example_cells(scale: Scale) -> list[Cell]:
    return [cell for label in METHODS for cell in counts(label, scale, EXAMPLE_ALPHA)]


def example_report(scale: Scale, results: Results) -> Report:
    means = {label: fmean(counted(results, label, scale, EXAMPLE_ALPHA)) for label in METHODS}
    finding = (
        "Parameters between hidden layers, relative to one model: "
        f"clustering {means['clustering']:.3f}, partial fusion {means['partial fusion']:.3f}."
    )
    table = measured(results, lambda r: _example_table(scale, r))
    return Report(finding, setting(scale, mnist_pairs(True, scale)), (table,))


def _example_table(scale: Scale, results: Results) -> Table:
    rows = []
    for label in METHODS:
        low, high = bounds(label, EXAMPLE_ALPHA)
        found = Value.of(counted(results, label, scale, EXAMPLE_ALPHA), digits=3)
        everything = Value.of(whole(results, label, scale, EXAMPLE_ALPHA), digits=3)
        rows.append((label, found, f"{low:.3f}", f"{high:.3f}", everything))
    columns = ("", "counted", "paper's best case", "paper's worst case", "whole network, counted")
    return Table("example", "Parameters at α = 0.5, relative to one model", columns, tuple(rows))


def sizes(scale: Scale) -> tuple[float, ...]:
    return tuple(a for a in alphas(scale) if a < 1)


def bounds_cells(scale: Scale) -> list[Cell]:
    return [cell for alpha in sizes(scale) for label in METHODS for cell in counts(label, scale, alpha)]


def within_bounds(results: Results, label: str, scale: Scale) -> list[bool]:
    """Whether each merged network is within the paper's bounds, up to rounding to whole channels."""
    limits = {alpha: bounds(label, alpha) for alpha in sizes(scale)}
    return [
        low - 0.02 <= found <= high + 0.02
        for alpha, (low, high) in limits.items()
        for found in counted(results, label, scale, alpha)
    ]


def bounds_claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    found = {label: within_bounds(results, label, scale) for label in ("pruning", "clustering", "partial fusion")}
    return [
        Verdict.of(
            f"The non-zero parameters of {label} are within the paper's bounds.",
            inside,
            "counted in merged networks, up to 0.02",
            cases="networks",
        )
        for label, inside in found.items()
    ]


def example_claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    found = {label: counted(results, label, scale, EXAMPLE_ALPHA) for label in METHODS}
    means = {label: fmean(values) for label, values in found.items()}
    fixed = found["partial fusion"]
    return [
        Verdict.of(
            "Pruning needs the fewest parameters.",
            [means["pruning"] < means[label] for label in ("clustering", "partial fusion")],
            f"pruning {means['pruning']:.3f}, clustering {means['clustering']:.3f}, partial fusion "
            f"{means['partial fusion']:.3f}",
            cases="comparisons",
        ),
        Verdict.of(
            "Partial fusion always has 1.75 times the parameters between hidden layers.",
            [abs(value - 1.75) < 0.005 for value in fixed],
            f"{min(fixed):.3f} to {max(fixed):.3f}",
            cases="pairs",
        ),
    ]


def bounds_report(scale: Scale, results: Results) -> Report:
    inside = [found for label in METHODS for found in within_bounds(results, label, scale)]
    finding = f"{sum(inside)} of {len(inside)} networks are within the paper's bounds (up to 0.02)."
    parts = (
        measured(results, lambda r: _bounds_table(scale, r)),
        measured(results, lambda r: _bounds_figure(scale, r)),
    )
    return Report(finding, setting(scale, mnist_pairs(True, scale)), parts)


def _bounds_table(scale: Scale, results: Results) -> Table:
    rows: list[Row] = []
    for label in METHODS:
        values = (Value.of(counted(results, label, scale, alpha), digits=3) for alpha in sizes(scale))
        rows.append((f"{label}, counted", *values))
        for which, words in enumerate(("best case", "worst case")):
            rows.append((f"{label}, {words}", *(f"{bounds(label, a)[which]:.3f}" for a in sizes(scale))))
    columns = ("", *(f"α = {a:g}" for a in sizes(scale)))
    note = (
        "Means over the two weights between hidden layers. Best and worst case are the paper's formulas; only whole "
        "channels exist, so counts may differ from them by rounding."
    )
    return Table(
        "counted", "Non-zero parameters between hidden layers, relative to one model", columns, tuple(rows), note
    )


def _bounds_figure(scale: Scale, results: Results) -> Figure:
    lines = tuple(
        Line.of(label, sizes(scale), (counted(results, label, scale, a) for a in sizes(scale))) for label in METHODS
    )
    return Figure("parameters", "Parameters between hidden layers", (Panel("", "α", "relative to one model", lines),))


EXAMPLE = Experiment(
    "params_p", "Parameter counts at α = 0.5", ("Table 5",), "MNIST", example_cells, example_report, example_claims
)
BOUNDS = Experiment(
    "params_t", "Parameter counts against the bounds", ("Table 4",), "MNIST", bounds_cells, bounds_report, bounds_claims
)
