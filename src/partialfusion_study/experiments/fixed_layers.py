"""VGG-11 with some layers left apart: accuracy against the channels of the whole."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..report import Line, Panel
from ..ways import CLUSTER_POST, PARTIAL_OT, PRUNING, REFIT
from .experiment import Results
from .grids import ACCURACY, EQUAL, Grid
from .settings import Scale, alphas, vgg_pairs

CHANNELS = "channels, relative to one model"
LAYERS = ("features.3", "features.6", "features.8")  # the paper's layers 2, 3 and 4
WAYS = {
    "partial OT fusion": PARTIAL_OT,
    "clustering": CLUSTER_POST,
    "unstructured pruning": PRUNING,
    "partial OT, refitted (ours)": REFIT,
}


def layout(scale: Scale, fixed: int) -> Grid:
    return Grid(vgg_pairs(scale), WAYS, alphas(scale, coarse=True), (EQUAL,), scale, fixed=LAYERS[:fixed])


def grid(scale: Scale, *counts: int) -> list[Cell]:
    return [cell for count in counts for cell in layout(scale, count).cells()]


def line(scale: Scale, results: Results, label: str, fixed: int, name: str) -> Line:
    """Accuracy at equal shares against the channels, up to the ensemble."""
    own = layout(scale, fixed)
    xs = [
        fmean(f["channels"] for f in own.found(results, label, alpha, EQUAL)) if alpha < 1 else 2.0
        for alpha in own.alphas
    ]
    ys = [fmean(own.accuracies(results, label, alpha, EQUAL)) for alpha in own.alphas]
    return Line(name, tuple(xs), tuple(ys))


def level(scale: Scale, results: Results) -> Line:
    """The better of the two networks."""
    own = layout(scale, 3)
    best = fmean(max(results(own.parents(pair))["a"], results(own.parents(pair))["b"]) for pair in own.pairs)
    return Line("better single network", (1.0,), (best,), style="dotted")


def panel(scale: Scale, results: Results, label: str) -> Panel:
    """A line per number of fixed layers."""
    lines = [line(scale, results, label, k, f"{k} fixed" if k else "none fixed") for k in range(4)]
    return Panel(label, CHANNELS, ACCURACY, (*lines, level(scale, results)))
