"""Clustering algorithms compared by cost and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import correlation, fmean
from typing import Any

from ..cell import Cell
from ..cells import Clusters
from ..methods import CLUSTER, MethodConfig
from ..recipes import Recipe
from ..report import Figure, Line, Panel, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import ACCURACY
from .runs import measured
from .settings import Scale, mnist_pairs, scaled, setting, tested

KEEP = 0.4
GREEDY = "greedy Ward"
LLOYD_10, LLOYD_1000 = "Lloyd, 10 starts", "Lloyd, 1000 starts"
WARD_1000, WARD_5000 = "stochastic Ward, 1000 starts", "stochastic Ward, 5000 starts"
PAPER_ORDER = GREEDY, LLOYD_10, WARD_1000, WARD_5000, LLOYD_1000  # from fastest to slowest
METHODS: dict[str, MethodConfig] = {
    GREEDY: replace(CLUSTER, solver="ward", restarts=None),
    LLOYD_10: replace(CLUSTER, solver="lloyd", restarts=10),
    LLOYD_1000: replace(CLUSTER, solver="lloyd", restarts=1000),
    WARD_1000: CLUSTER,
    WARD_5000: replace(CLUSTER, restarts=5000),
    "Ward with exchange (ours)": replace(CLUSTER, solver="exchange", restarts=None),
}


def models(scale: Scale) -> list[Recipe]:
    """Ten networks: both of every pair."""
    return [model for pair in mnist_pairs(False, scale) for model in (pair.a, pair.b)]


def cell(model: Recipe, config: MethodConfig, scale: Scale) -> Clusters:
    return Clusters(model, scaled(config, scale), KEEP, tested(scale))


def cells(scale: Scale) -> list[Cell]:
    return [cell(model, config, scale) for model in models(scale) for config in METHODS.values()]


def _found(scale: Scale, results: Results) -> dict[str, list[dict[str, Any]]]:
    """Algorithm → its results, network by network."""
    return {label: [results(cell(m, config, scale)) for m in models(scale)] for label, config in METHODS.items()}


def _costs(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """Algorithm → the costs of its clusterings relative to greedy Ward, network by network."""
    base = [f["cost"] for f in found[GREEDY]]
    return {label: [f["cost"] / b for f, b in zip(runs, base, strict=True)] for label, runs in found.items()}


def report(scale: Scale, results: Results) -> Report:
    costs = {label: fmean(values) for label, values in _costs(_found(scale, results)).items()}
    best = min(costs, key=lambda label: costs[label])
    finding = f"{best} has the lowest cost, {costs[best]:.4f} times that of greedy Ward."
    text = f"{setting(scale, mnist_pairs(False, scale))} Each network is pruned alone, by activations on 1,000 images."
    parts = (measured(results, lambda r: _figure(scale, r)), measured(results, lambda r: _table(scale, r)))
    return Report(finding, text, parts)


def _figure(scale: Scale, results: Results) -> Figure:
    found = _found(scale, results)
    costs = _costs(found)
    lines = [
        Line(label, (fmean(costs[label]),), (fmean(f["accuracy"] for f in runs),), style="points")
        for label, runs in found.items()
    ]
    panel = Panel("", "cost of the clustering, relative to greedy Ward", ACCURACY, tuple(lines))
    return Figure("cost-accuracy", "Clustering algorithms", (panel,))


def _table(scale: Scale, results: Results) -> Table:
    found = _found(scale, results)
    costs = _costs(found)
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
    return Table("algorithms", f"Networks pruned to {KEEP:g} of their channels", columns, rows, note)


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    every = _found(scale, results)
    found = {label: every[label] for label in PAPER_ORDER}
    costs = {label: fmean(values) for label, values in _costs(found).items()}
    accuracies = {label: fmean(f["accuracy"] for f in runs) for label, runs in found.items()}
    seconds = {label: fmean(f["processor_seconds"] for f in runs) for label, runs in found.items()}
    related = correlation(list(costs.values()), list(accuracies.values()))
    hierarchical, lloyd = (GREEDY, WARD_1000, WARD_5000), (LLOYD_10, LLOYD_1000)
    return [
        Verdict.of(
            "Hierarchical clustering outperforms Lloyd's algorithm, also with many starts.",
            [costs[w] < costs[k] and accuracies[w] > accuracies[k] for w in hierarchical for k in lloyd],
            "relative cost and accuracy: "
            + "; ".join(f"{label} {costs[label]:.3f}, {accuracies[label]:.1f} %" for label in PAPER_ORDER),
            cases="comparisons",
        ),
        Verdict.of(
            "A better clustering correlates with a higher accuracy.",
            [related < -0.5],
            f"correlation of cost and accuracy over the five algorithms: {related:.2f}",
        ),
        Verdict.of(
            "From fastest to slowest: greedy Ward, Lloyd with 10 starts, stochastic Ward with 1000 and with 5000 "
            "starts, Lloyd with 1000 starts.",
            [seconds[a] < seconds[b] for a, b in pairwise(PAPER_ORDER)],
            "CPU seconds of the whole pruning: "
            + ", ".join(f"{label} {seconds[label]:.2f}" for label in sorted(seconds, key=lambda k: seconds[k])),
            cases="neighbours",
        ),
    ]


EXPERIMENT = Experiment(
    "cluster_simple_visualization",
    "Clustering algorithms for generalised pruning",
    ("Figure 14",),
    "MNIST",
    cells,
    report,
    claims,
)
