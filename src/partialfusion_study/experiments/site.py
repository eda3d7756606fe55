"""Our own: what clustering compares channels by, and whether before or after the activation function."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..report import Row, Table, Value
from ..ways import OURS, Way
from .experiment import Experiment, Results, Told
from .grids import EQUAL, Grid
from .settings import Scale, mnist_pairs, vgg_pairs
from .words import setting

SIZES = (0.0, 0.2, 0.4)
WAYS = {
    f"{features}, {site}": Way("cluster", features, site, images=OURS.images)
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
    return {title: Grid(found, WAYS, sizes, (EQUAL,), scale) for title, found in pairs.items()}


def grid(scale: Scale) -> list[Cell]:
    return [cell for own in grids(scale).values() for cell in own.cells()]


def tell(scale: Scale, results: Results) -> Told:
    tables, findings = [], []
    for number, (title, own) in enumerate(grids(scale).items()):
        means = {label: fmean(fmean(own.accuracies(results, label, a, EQUAL)) for a in own.alphas) for label in WAYS}
        rows: list[Row] = [
            (label, *(Value.of(own.accuracies(results, label, a, EQUAL)) for a in own.alphas)) for label in WAYS
        ]
        columns = ("features, site", *(f"α = {a:g}" for a in own.alphas))
        tables.append(Table(f"sites-{number}", f"{title}: accuracy (%)", columns, tuple(rows)))
        findings.append(f"{title}: " + ", ".join(f"{label} {mean:.2f} %" for label, mean in means.items()))
    text = (
        f"{setting(scale, mnist_pairs(True, scale))} {setting(scale, vgg_pairs(scale))} Clustering with exchange at "
        "equal shares on 1,000 training images; none of these networks has batch norms. *Pre* is before the activation "
        "function, *post* after it; *both* adds weights to the activations."
    )
    return Told("Means over sizes. " + "; ".join(findings) + ".", text, tuple(tables))


EXPERIMENT = Experiment("site", "What clustering looks at (ours)", (), "MNIST, CIFAR-10", grid, tell)
