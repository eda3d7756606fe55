"""Our own experiment: the features that clustering compares, before or after the activation function."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..methods import OURS, MethodConfig
from ..report import Row, Table, Value
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .runs import measured
from .settings import Scale, mnist_pairs, setting, vgg_pairs

SIZES = (0.0, 0.2, 0.4)
METHODS = {
    f"{features}, {site}": MethodConfig("cluster", features, site, images=OURS.images)
    for features in ("both", "activations")
    for site in ("pre", "post")
}


def grids(scale: Scale) -> dict[str, Grid]:
    sizes = (0.5,) if scale == "quick" else SIZES
    pairs = {
        "MLPs on split MNIST": mnist_pairs(True, scale),
        "MLPs on MNIST": mnist_pairs(False, scale),
        "VGG-11 on CIFAR-10": vgg_pairs(scale),
    }
    return {title: Grid(found, METHODS, sizes, (EQUAL,), scale) for title, found in pairs.items()}


def cells(scale: Scale) -> list[Cell]:
    return [cell for grid in grids(scale).values() for cell in grid.cells()]


def report(scale: Scale, results: Results) -> Report:
    tables, findings = [], []
    for number, (title, grid) in enumerate(grids(scale).items()):

        def table(results: Results, number: int = number, title: str = title, grid: Grid = grid) -> Table:
            rows: list[Row] = [
                (label, *(Value.of(grid.accuracies(results, label, a, EQUAL)) for a in grid.alphas))
                for label in METHODS
            ]
            columns = ("features, site", *(f"α = {a:g}" for a in grid.alphas))
            return Table(f"sites-{number}", f"{title}: accuracy (%)", columns, tuple(rows))

        tables.append(measured(results, table))
        means = {label: fmean(grid.mean(results, label, a) for a in grid.alphas) for label in METHODS}
        findings.append(f"{title}: " + ", ".join(f"{label} {mean:.2f} %" for label, mean in means.items()))
    text = (
        f"{setting(scale, mnist_pairs(True, scale))} {setting(scale, vgg_pairs(scale))} Clustering with exchange at "
        "equal shares on 1,000 training images; none of these networks has batch norm. *Pre* is before the activation "
        "function, *post* after it; *both* combines activations and weights. The library's default is *both, post* "
        "for VGG-11, which has ReLU, and *both, pre* for these MLPs, which have GELU."
    )
    finding = (
        f"In {title}, clustering by both has {means['both, pre']:.2f} % before the activation function and "
        f"{means['both, post']:.2f} % after it, on average over the sizes."
    )
    return Report(finding, f"{text}\n\nMeans over the sizes. {'; '.join(findings)}.", tuple(tables))


EXPERIMENT = Experiment("site", "Features for clustering (ours)", (), "MNIST, CIFAR-10", cells, report)
