"""What matching and norm statistics cost two ResNet-18 that know different classes, fused to the size of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..cell import Cell
from ..methods import ACTIVATIONS, PARTIAL_OT, RECALIBRATED, MethodConfig
from ..report import Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .settings import Scale, alphas, setting, split_resnet_pairs

FREE, MEASURED = "weights, data-free", "weights, recalibrated"
METHODS: dict[str, MethodConfig] = {
    FREE: PARTIAL_OT,
    MEASURED: RECALIBRATED,
    "activations, data-free": replace(ACTIVATIONS, norm="analytic"),
    "activations, recalibrated": ACTIVATIONS,
}


def make_grid(scale: Scale) -> Grid:
    """At the usual scale only the size of one model."""
    sizes = (0.0, 1.0) if scale == "usual" else alphas(scale)
    return Grid(split_resnet_pairs(scale), METHODS, sizes, (EQUAL,), scale)


def cells(scale: Scale) -> list[Cell]:
    return make_grid(scale).cells()


def report(scale: Scale, results: Results) -> Report:
    grid = make_grid(scale)
    table = grid.table(results, "rows", "Matched and normalised in four ways, accuracy (%) at equal shares")
    listed = ", ".join(f"{label} {grid.mean(results, label, 0.0):.1f} %" for label in METHODS)
    text = (
        f"{setting(scale, grid.pairs)} Channels are matched by weights, or by activations on 1,000 images; the "
        "statistics of batch norms follow the paper's data-free rule, or are measured on the same images."
    )
    return Report(f"At the size of one model: {listed}.", text, (table, grid.reference(results)))


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    grid = make_grid(scale)
    free, measured = (grid.mean(results, label, 0.0) for label in (FREE, MEASURED))
    a, b = grid.alone(results)
    return [
        Verdict.of(
            "Without data, statistics of batch norms follow from variances and cosines (within five points, at α = 0).",
            [abs(measured - free) < 5],
            f"data-free {free:.2f} %, recalibrated {measured:.2f} %",
        ),
        Verdict.of(
            "Fused without data to the size of one, two ResNet-18 stay near the single networks (within 15 points; "
            "paper: 66.4 % of 79.8 and 76.7).",
            [free > min(a, b) - 15],
            f"{free:.2f} %, of single networks of {a:.2f} and {b:.2f} %",
        ),
    ]


EXPERIMENT = Experiment(
    "split_norms", "Matching and norm statistics of split ResNet-18", ("Table 1",), "CIFAR-10", cells, report, claims
)
