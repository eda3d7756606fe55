"""Which layers to leave apart: one, two or three of VGG-11's, the rest merged in several ways."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..report import Figure, Row, Table, Value
from . import fixed_layers
from .experiment import Experiment, Results, Told
from .fixed_layers import LAYERS, WAYS, layout, panel
from .grids import EQUAL
from .settings import Scale, vgg_pairs
from .words import setting


def grid(scale: Scale) -> list[Cell]:
    return fixed_layers.grid(scale, 0, 1, 2, 3)


def tell(scale: Scale, results: Results) -> Told:
    figure = Figure(
        "panels", "Some layers left apart", tuple(panel(scale, results, label) for label in WAYS), columns=2
    )
    rows: list[Row] = []
    for count in range(4):
        own = layout(scale, count)
        for label in WAYS:
            values = [Value.of(own.accuracies(results, label, a, EQUAL)) for a in own.alphas]
            rows.append((f"{count}", label, *values))
    columns = ("fixed", "way", *(f"α = {a:g}" for a in layout(scale, 0).alphas))
    table = Table(
        "fixed", "Accuracy (%) at equal shares; alpha is of the layers that are not fixed", columns, tuple(rows)
    )
    gains = {
        label: fmean(
            fmean(layout(scale, 3).accuracies(results, label, a, EQUAL))
            - fmean(layout(scale, 0).accuracies(results, label, a, EQUAL))
            for a in layout(scale, 0).alphas
            if a < 1
        )
        for label in WAYS
    }
    listed = ", ".join(f"{label} {gain:+.1f}" for label, gain in gains.items())
    finding = f"Three fixed layers against none, mean over alpha below 1, in points: {listed}."
    text = (
        f"{setting(scale, vgg_pairs(scale))} Fixed are {', '.join(LAYERS)}, in this order: the paper's layers 2, 3, 4."
    )
    return Told(finding, text, (figure, table))


EXPERIMENT = Experiment("fix_same_data", "VGG-11 with fixed layers", ("fig:fix_same_data",), "CIFAR-10", grid, tell)
