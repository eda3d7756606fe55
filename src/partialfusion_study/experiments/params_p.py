"""The example of the parameter counts at alpha = 0.5."""

from __future__ import annotations

from ..cell import Cell
from ..report import Table, Value
from . import params
from .experiment import Experiment, Results, Told
from .settings import Scale, mnist_pairs
from .words import setting

ALPHA = 0.5


def grid(scale: Scale) -> list[Cell]:
    return params.cells(scale, ALPHA)


def tell(scale: Scale, results: Results) -> Told:
    rows = []
    for label in params.WAYS:
        low, high = params.bounds(label, ALPHA)
        found = Value.of(params.counted(results, label, scale, ALPHA), digits=3)
        whole = Value.of(params.whole(results, label, scale, ALPHA), digits=3)
        rows.append((label, found, f"{low:.3f}", f"{high:.3f}", whole))
    columns = ("", "counted", "paper's best case", "paper's worst case", "whole network, counted")
    table = Table("example", "Parameters at α = 0.5, relative to one model", columns, tuple(rows))
    listed = ", ".join(f"{row[0]} {row[1].mean:.3f}" for row in rows if isinstance(row[1], Value))
    return Told(f"Counted between hidden layers: {listed}.", setting(scale, mnist_pairs(True, scale)), (table,))


EXPERIMENT = Experiment("params_p", "Parameter counts at α = 0.5", ("tab:params_p",), "MNIST", grid, tell)
