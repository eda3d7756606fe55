"""OT fusion and Git Re-Basin's weight matching: the same merger by two solvers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ..cell import Cell
from ..methods import MethodConfig
from ..report import Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import Grid
from .runs import measured
from .settings import Scale, mnist_pairs, setting, vgg_pairs

OT, REBASIN = "OT fusion", "Git Re-Basin (weight matching)"
METHODS: dict[str, MethodConfig] = {
    OT: MethodConfig("ot", "weights"),
    REBASIN: MethodConfig("permutation", "weights"),
}
SHARES = (0.3, 0.5, 0.7)


def grids(scale: Scale) -> dict[str, Grid]:
    """Networks of the capacity table's training, which is short, and VGG-11."""
    pairs = {
        "MLPs on split MNIST": mnist_pairs(True, scale, epochs=5),
        "MLPs on MNIST": mnist_pairs(False, scale, epochs=5),
        "VGG-11 on CIFAR-10": vgg_pairs(scale),
    }
    return {title: Grid(found, METHODS, (0.0,), SHARES, scale) for title, found in pairs.items()}


def cells(scale: Scale) -> list[Cell]:
    return [cell for grid in grids(scale).values() for cell in grid.cells()]


def report(scale: Scale, results: Results) -> Report:
    tables = []
    for number, (title, grid) in enumerate(grids(scale).items()):

        def table(results: Results, number: int = number, title: str = title, grid: Grid = grid) -> Table:
            rows: list[Row] = [
                (label, *(Value.of(grid.accuracies(results, label, 0.0, share)) for share in SHARES))
                for label in METHODS
            ]
            columns = ("", *(f"share of B {share:g}" for share in SHARES))
            return Table(f"merged-{number}", f"{title}: accuracy (%)", columns, tuple(rows))

        tables.append(measured(results, table))
    largest = max(gap for grid in grids(scale).values() for gap in _gaps(grid, results))
    text = (
        f"{setting(scale, mnist_pairs(True, scale, epochs=5))} {setting(scale, vgg_pairs(scale))} Both methods match "
        "by weights, with the fixed point. OT fusion solves optimal transport with uniform masses; Git Re-Basin solves "
        "linear assignments (Ainsworth et al., 2023). They differ in what they add up: Git Re-Basin sums the inner "
        "products of all weights as they are, OT fusion scales the costs of all layers to the same size, and the fixed "
        "point then ends elsewhere. The MLPs are trained for 5 epochs, as in the capacity table."
    )
    finding = f"OT fusion and Git Re-Basin differ by at most {largest:.2f} points."
    return Report(finding, text, tuple(tables))


def _gaps(grid: Grid, results: Results) -> list[float]:
    """The absolute difference of the two methods, for every pair and share."""
    return [
        abs(a - b)
        for share in SHARES
        for a, b in zip(*(grid.accuracies(results, label, 0.0, share) for label in (OT, REBASIN)), strict=True)
    ]


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    apart = {title: max(_gaps(grid, results)) for title, grid in grids(scale).items()}
    ahead = {
        title: fmean(grid.mean(results, OT, 0.0, s) - grid.mean(results, REBASIN, 0.0, s) for s in SHARES)
        for title, grid in grids(scale).items()
    }
    return [
        Verdict.of(
            "With the fixed point, OT fusion of equal widths gives the same as Git Re-Basin's weight matching.",
            [gap < 0.05 for gap in apart.values()],
            "largest difference in points over pairs and shares: "
            + ", ".join(f"{gap:.2f} ({title})" for title, gap in apart.items()),
            cases="settings",
        ),
        Verdict.of(
            "On average the two are equivalent (within one point).",
            [abs(gap) < 1 for gap in ahead.values()],
            "OT fusion minus Git Re-Basin in points: " + ", ".join(f"{gap:+.2f} ({t})" for t, gap in ahead.items()),
            cases="settings",
        ),
        _sweeps(scale, results),
    ]


def _sweeps(scale: Scale, results: Results) -> Verdict:
    """The verdict on how many sweeps the fixed point takes; they do not depend on the share."""
    found = {
        title: [f["sweeps"] for f in grid.found(results, OT, 0.0, SHARES[0])] for title, grid in grids(scale).items()
    }
    listed = ", ".join(f"{min(s)} to {max(s)}" if min(s) < max(s) else f"{s[0]}" for s in found.values())
    return Verdict.of(
        "The fixed point usually converges after around 6 sweeps (7 or fewer).",
        [sweeps <= 7 for many in found.values() for sweeps in many],
        f"sweeps of OT fusion, the last of which gains hardly anything: {listed} ({', '.join(found)})",
        often=True,
        cases="pairs",
    )


EXPERIMENT = Experiment(
    "git_rebasin", "OT fusion and Git Re-Basin", ("Appendix D",), "MNIST, CIFAR-10", cells, report, claims
)
