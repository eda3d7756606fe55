"""One VGG-11 pruned in several ways."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from ..ways import CLUSTER_POST
from .experiment import Experiment, Results, Told
from .pruned import WAYS, Pruning
from .settings import Scale, vgg_pairs
from .words import setting


def layout(scale: Scale) -> Pruning:
    models = [model for pair in vgg_pairs(scale) for model in (pair.a, pair.b)]
    return Pruning(models, scale, WAYS | {"clustering": CLUSTER_POST})


def grid(scale: Scale) -> list[Cell]:
    return layout(scale).cells()


def tell(scale: Scale, results: Results) -> Told:
    own = layout(scale)
    middle = own.sizes[len(own.sizes) // 2]
    listed = ", ".join(f"{label} {fmean(own.accuracies(results, label, middle)):.1f} %" for label in own.ways)
    return Told(
        f"With {middle:g} of the channels left: {listed}.",
        f"{setting(scale, vgg_pairs(scale))} Each network of the pairs is pruned alone.",
        (own.figure(results), own.table(results)),
    )


EXPERIMENT = Experiment(
    "pruning_vgg", "Generalised pruning of one VGG-11", ("fig: pruning_vgg",), "CIFAR-10", grid, tell
)
