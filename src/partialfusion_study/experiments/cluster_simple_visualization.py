"""Clustering algorithms: what they reach, and what it is worth in accuracy."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from ..cell import Cell
from ..cells import Clusters
from ..recipes import Training
from ..report import Figure, Line, Panel, Table, Value
from ..ways import CLUSTER, Way
from .experiment import Experiment, Results, Told
from .grids import ACCURACY
from .settings import Scale, mnist_pairs, scaled, tested
from .words import setting

KEEP = 0.4
GREEDY = "greedy Ward"
WAYS: dict[str, Way] = {
    GREEDY: replace(CLUSTER, solver="ward", restarts=None),
    "Lloyd, 10 starts": replace(CLUSTER, solver="lloyd", restarts=10),
    "Lloyd, 1000 starts": replace(CLUSTER, solver="lloyd", restarts=1000),
    "stochastic Ward, 1000 starts": CLUSTER,
    "stochastic Ward, 5000 starts": replace(CLUSTER, restarts=5000),
    "Ward with exchange (ours)": replace(CLUSTER, solver="exchange", restarts=None),
}


def models(scale: Scale) -> list[Training]:
    """Ten networks: both of every pair."""
    return [model for pair in mnist_pairs(False, scale) for model in (pair.a, pair.b)]


def cell(model: Training, way: Way, scale: Scale) -> Clusters:
    return Clusters(model, scaled(way, scale), KEEP, tested(scale))


def grid(scale: Scale) -> list[Cell]:
    return [cell(model, way, scale) for model in models(scale) for way in WAYS.values()]


def tell(scale: Scale, results: Results) -> Told:
    found = {label: [results(cell(m, way, scale)) for m in models(scale)] for label, way in WAYS.items()}
    base = [f["cost"] for f in found[GREEDY]]
    costs = {label: [f["cost"] / b for f, b in zip(own, base, strict=True)] for label, own in found.items()}
    lines = [
        Line(label, (fmean(costs[label]),), (fmean(f["accuracy"] for f in own),), style="points")
        for label, own in found.items()
    ]
    panel = Panel("", "cost of the clustering, relative to greedy Ward", ACCURACY, tuple(lines))
    rows = tuple(
        (
            label,
            Value.of(costs[label], digits=4),
            Value.of(f["accuracy"] for f in own),
            Value.of((f["processor_seconds"] for f in own), digits=2),
        )
        for label, own in found.items()
    )
    columns = ("algorithm", "relative cost", "accuracy (%)", "processor seconds")
    note = (
        "Seconds are of whole prunings, with tracing and evaluation, on a machine that was busy; they give the order."
    )
    table = Table("algorithms", f"Networks pruned to {KEEP:g} of their channels", columns, rows, note)
    best = min(costs, key=lambda label: fmean(costs[label]))
    lloyd = fmean(costs["Lloyd, 1000 starts"])
    finding = f"Lowest cost: {best}, {fmean(costs[best]):.4f} of greedy Ward's; Lloyd with 1000 starts {lloyd:.4f}."
    text = f"{setting(scale, mnist_pairs(False, scale))} Each network is pruned alone, by activations on 1,000 images."
    return Told(finding, text, (Figure("cost-accuracy", "Clustering algorithms", (panel,)), table))


EXPERIMENT = Experiment(
    "cluster_simple_visualization",
    "Clustering algorithms for generalised pruning",
    ("fig:cluster_simple_visualization",),
    "MNIST",
    grid,
    tell,
)
