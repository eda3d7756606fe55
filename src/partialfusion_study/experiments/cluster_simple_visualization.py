"""Clustering algorithms compared by cost and accuracy."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from ..cell import Cell
from ..cells import Clusters
from ..methods import CLUSTER, MethodConfig
from ..recipes import Recipe
from ..report import Figure, Line, Panel, Table, Value
from .experiment import Experiment, Report, Results
from .grids import ACCURACY
from .settings import Scale, mnist_pairs, scaled, setting, tested

KEEP = 0.4
GREEDY = "greedy Ward"
METHODS: dict[str, MethodConfig] = {
    GREEDY: replace(CLUSTER, solver="ward", restarts=None),
    "Lloyd, 10 starts": replace(CLUSTER, solver="lloyd", restarts=10),
    "Lloyd, 1000 starts": replace(CLUSTER, solver="lloyd", restarts=1000),
    "stochastic Ward, 1000 starts": CLUSTER,
    "stochastic Ward, 5000 starts": replace(CLUSTER, restarts=5000),
    "Ward with exchange (ours)": replace(CLUSTER, solver="exchange", restarts=None),
}


def models(scale: Scale) -> list[Recipe]:
    """Ten networks: both of every pair."""
    return [model for pair in mnist_pairs(False, scale) for model in (pair.a, pair.b)]


def cell(model: Recipe, config: MethodConfig, scale: Scale) -> Clusters:
    return Clusters(model, scaled(config, scale), KEEP, tested(scale))


def cells(scale: Scale) -> list[Cell]:
    return [cell(model, config, scale) for model in models(scale) for config in METHODS.values()]


def report(scale: Scale, results: Results) -> Report:
    found = {label: [results(cell(m, config, scale)) for m in models(scale)] for label, config in METHODS.items()}
    base = [f["cost"] for f in found[GREEDY]]
    costs = {label: [f["cost"] / b for f, b in zip(runs, base, strict=True)] for label, runs in found.items()}
    lines = [
        Line(label, (fmean(costs[label]),), (fmean(f["accuracy"] for f in runs),), style="points")
        for label, runs in found.items()
    ]
    panel = Panel("", "cost of the clustering, relative to greedy Ward", ACCURACY, tuple(lines))
    rows = tuple(
        (
            label,
            Value.of(costs[label], digits=4),
            Value.of(f["accuracy"] for f in runs),
            Value.of((f["processor_seconds"] for f in runs), digits=2),
        )
        for label, runs in found.items()
    )
    columns = ("algorithm", "relative cost", "accuracy (%)", "CPU seconds")
    note = (
        "Times are those of the whole pruning with tracing and evaluation, on a busy machine; only their order is "
        "meaningful."
    )
    table = Table("algorithms", f"Networks pruned to {KEEP:g} of their channels", columns, rows, note)
    best = min(costs, key=lambda label: fmean(costs[label]))
    lloyd = fmean(costs["Lloyd, 1000 starts"])
    finding = (
        f"{best} has the lowest cost, {fmean(costs[best]):.4f} times that of greedy Ward; Lloyd with 1000 starts has "
        f"{lloyd:.4f} times."
    )
    text = f"{setting(scale, mnist_pairs(False, scale))} Each network is pruned alone, by activations on 1,000 images."
    return Report(finding, text, (Figure("cost-accuracy", "Clustering algorithms", (panel,)), table))


EXPERIMENT = Experiment(
    "cluster_simple_visualization",
    "Clustering algorithms for generalised pruning",
    ("fig:cluster_simple_visualization",),
    "MNIST",
    cells,
    report,
)
