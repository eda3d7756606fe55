"""All ways side by side with three of VGG-11's layers left apart."""

from __future__ import annotations

from ..cell import Cell
from ..report import Figure, Panel
from . import fixed_layers
from .experiment import Experiment, Results, Told
from .fixed_layers import CHANNELS, WAYS, level, line
from .grids import ACCURACY
from .settings import Scale, vgg_pairs
from .words import setting


def grid(scale: Scale) -> list[Cell]:
    return fixed_layers.grid(scale, 3)


def tell(scale: Scale, results: Results) -> Told:
    lines = [line(scale, results, label, 3, label) for label in WAYS]
    single = level(scale, results)
    panel = Panel("three layers fixed", CHANNELS, ACCURACY, (*lines, single))
    points = list(zip(lines[0].x, lines[0].y, strict=True))
    above = next((x for k, (x, _) in enumerate(points) if all(y > single.y[0] for _, y in points[k:])), None)
    where = f"from {above:.2f}× the channels on" if above is not None else "at no size"
    finding = f"Partial OT fusion is above the better single network {where} (paper: from 1.38×)."
    return Told(finding, setting(scale, vgg_pairs(scale)), (Figure("all", "Three layers left apart", (panel,)),))


EXPERIMENT = Experiment("fixed_all", "All ways with three fixed layers", ("fig:fixed_all",), "CIFAR-10", grid, tell)
