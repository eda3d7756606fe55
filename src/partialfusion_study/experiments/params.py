"""Parameters between hidden layers, counted in merged networks."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..cells import Counts
from ..ways import CLUSTER, OURS, PARTIAL_OT, PRUNING, Way
from .experiment import Results
from .settings import Scale, mnist_pairs, scaled

WAYS: dict[str, Way] = {
    "pruning": PRUNING,
    "clustering": CLUSTER,
    "clustering with exchange (ours)": OURS,
    "partial fusion": PARTIAL_OT,
}


def bounds(label: str, alpha: float) -> tuple[float, float]:
    """The paper's best and worst case, relative to one model's layer."""
    best, worst = 2 * ((1 + alpha) / 2) ** 2, 1 - alpha**2 + 2 * alpha
    if label == "pruning":
        return best, 1 + alpha**2
    return (worst, worst) if label == "partial fusion" else (best, worst)


def cells(scale: Scale, alpha: float) -> list[Cell]:
    return [cell for way in WAYS.values() for cell in of(way, scale, alpha)]


def of(way: Way, scale: Scale, alpha: float) -> list[Counts]:
    return [Counts(pair, scaled(way, scale), alpha) for pair in mnist_pairs(True, scale)]


def counted(results: Results, label: str, scale: Scale, alpha: float) -> list[float]:
    """One number per pair: the mean over its layers between hidden ones."""
    return [fmean(results(cell)["hidden"]) for cell in of(WAYS[label], scale, alpha)]


def whole(results: Results, label: str, scale: Scale, alpha: float) -> list[float]:
    """Of the whole network, one number per pair."""
    return [results(cell)["ratio"] for cell in of(WAYS[label], scale, alpha)]
