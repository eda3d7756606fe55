"""Masses of channels in partial OT: equal ones, as the paper uses, or by the importance of the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ..cell import Cell
from ..methods import PARTIAL_OT
from ..report import Verdict
from .experiment import Experiment, Report, Results
from .grids import Grid
from .settings import Scale, setting, vgg_pairs

SIZES = (0.0, 0.4)
EQUAL = "equal masses"
METHODS = {
    EQUAL: PARTIAL_OT,
    "by incoming weights": replace(PARTIAL_OT, masses="incoming"),
    "by outgoing weights": replace(PARTIAL_OT, masses="outgoing"),
}


def make_grid(scale: Scale) -> Grid:
    return Grid(vgg_pairs(scale), METHODS, (0.5,) if scale == "quick" else SIZES, (0.5,), scale)


def cells(scale: Scale) -> list[Cell]:
    return make_grid(scale).cells()


def report(scale: Scale, results: Results) -> Report:
    grid = make_grid(scale)
    table = grid.table(results, "masses", "Accuracy (%) at equal shares")
    means = {label: fmean(grid.mean(results, label, a) for a in grid.alphas) for label in METHODS}
    listed = ", ".join(f"{label} {mean:.2f} %" for label, mean in means.items())
    text = (
        f"{setting(scale, grid.pairs)} Partial OT matches channels by weights. The paper gives every channel the same "
        "mass and remarks that masses can be derived from importance; here they follow the norms of the weights that "
        "write a channel, or that read it. A channel may then be fused with several. Widths are the same in all rows."
    )
    return Report(f"Means over the sizes: {listed}.", text, (table, grid.reference(results)))


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    grid = make_grid(scale)
    found = []
    for label in METHODS:
        if label != EQUAL:
            gaps = {a: grid.mean(results, label, a) - grid.mean(results, EQUAL, a) for a in grid.alphas}
            listed = ", ".join(f"{gap:+.2f} (α = {a:g})" for a, gap in gaps.items())
            found.append(
                Verdict.of(
                    f"Equal masses, the usual choice, are no worse than masses {label}.",
                    [gap <= 0 for gap in gaps.values()],
                    f"masses {label} relative to equal ones, in points: {listed}",
                )
            )
    return found


EXPERIMENT = Experiment("masses", "Masses by importance", ("Section 2.4",), "CIFAR-10", cells, report, claims)
