"""The paper's bounds on the parameters of a merged layer, against what is counted, over alpha."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..report import Figure, Line, Panel, Row, Table, Value
from . import params
from .experiment import Experiment, Results, Told
from .settings import Scale, alphas, mnist_pairs
from .words import setting


def sizes(scale: Scale) -> tuple[float, ...]:
    return tuple(a for a in alphas(scale) if a < 1)


def grid(scale: Scale) -> list[Cell]:
    return [cell for alpha in sizes(scale) for cell in params.cells(scale, alpha)]


def tell(scale: Scale, results: Results) -> Told:
    rows: list[Row] = []
    inside: list[bool] = []
    for label in params.WAYS:
        values = []
        for alpha in sizes(scale):
            found = params.counted(results, label, scale, alpha)
            low, high = params.bounds(label, alpha)
            inside += [low - 0.02 <= v <= high + 0.02 for v in found]
            values.append(Value.of(found, digits=3))
        rows.append((f"{label}, counted", *values))
        for which, words in enumerate(("best case", "worst case")):
            rows.append((f"{label}, {words}", *(f"{params.bounds(label, a)[which]:.3f}" for a in sizes(scale))))
    columns = ("", *(f"α = {a:g}" for a in sizes(scale)))
    note = (
        "Means over the two layers between hidden ones. Rows named best and worst case are the paper's formulas; whole "
        "channels are counted, so both can round."
    )
    table = Table(
        "counted", "Non-zero parameters between hidden layers, relative to one model", columns, tuple(rows), note
    )
    lines = tuple(
        Line(label, sizes(scale), tuple(fmean(params.counted(results, label, scale, a)) for a in sizes(scale)))
        for label in params.WAYS
    )
    figure = Figure("parameters", "Parameters between hidden layers", (Panel("", "α", "relative to one model", lines),))
    finding = f"{sum(inside)} of {len(inside)} counted networks lie within the paper's bounds (to two hundredths)."
    return Told(finding, setting(scale, mnist_pairs(True, scale)), (table, figure))


EXPERIMENT = Experiment("params_t", "Parameter counts against the bounds", ("tab:params_t",), "MNIST", grid, tell)
