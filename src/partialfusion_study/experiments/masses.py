"""Masses of channels in partial OT: equal ones, as the paper uses, or by the importance of the channels."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from ..cell import Cell
from ..methods import PARTIAL_OT
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
    others = {label: mean for label, mean in means.items() if label != EQUAL}
    best = max(others, key=lambda label: others[label])
    gaps = [grid.mean(results, label, a) - grid.mean(results, EQUAL, a) for label in others for a in grid.alphas]
    behind = sum(gap < 0 for gap in gaps)
    found = (
        f"Masses by importance are behind equal ones in {behind} of {len(gaps)} cases; the differences are "
        f"{min(gaps):+.2f} to {max(gaps):+.2f} points."
    )
    text = (
        f"{setting(scale, grid.pairs)} Partial OT matches channels by weights. The paper gives every channel the same "
        "mass and remarks that masses can be derived from importance; here they follow the norms of the weights that "
        "write a channel, or that read it. A channel may then be fused with several. Widths are the same in all rows. "
        f"The paper reports no experiment on masses, so there is no claim to judge. {found}"
    )
    finding = f"Equal masses have {means[EQUAL]:.2f} % on average over the sizes, masses {best} {means[best]:.2f} %."
    return Report(finding, text, (table, grid.reference(results)))


EXPERIMENT = Experiment("masses", "Masses by importance", ("Section 2.4",), "CIFAR-10", cells, report)
