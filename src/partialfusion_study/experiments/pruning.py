"""One network pruned by several methods to several sizes; the experiment on VGG-11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ..cell import Cell
from ..cells import Compress, Train
from ..methods import CLUSTER, CLUSTER_POST, OURS, OURS_REFIT, PRUNING, PRUNING_OT, MethodConfig
from ..recipes import Recipe
from ..report import Figure, Line, Panel, Row, Table, Value
from .experiment import Experiment, Report, Results
from .grids import ACCURACY
from .settings import Scale, scaled, setting, tested, vgg_pairs

METHODS: dict[str, MethodConfig] = {
    "pruning": PRUNING,
    "pruning + OT post-processing": PRUNING_OT,
    "clustering": CLUSTER,
    "clustering with exchange (ours)": OURS,
    "clustering with exchange, refitted (ours)": OURS_REFIT,
}


@dataclass(frozen=True)
class Pruning:
    """Networks × methods × sizes."""

    models: Sequence[Recipe]
    scale: Scale
    methods: Mapping[str, MethodConfig] = field(default_factory=lambda: METHODS)

    @property
    def sizes(self) -> tuple[float, ...]:
        return (0.5,) if self.scale == "quick" else tuple(k / 10 for k in range(1, 10))

    def cells(self) -> list[Cell]:
        return [self.cell(m, w, k) for m in self.models for w in self.methods.values() for k in self.sizes]

    def cell(self, model: Recipe, config: MethodConfig, keep: float) -> Compress:
        return Compress(model, scaled(config, self.scale), keep, tested(self.scale))

    def accuracies(self, results: Results, label: str, keep: float) -> list[float]:
        return [results(self.cell(model, self.methods[label], keep))["accuracy"] for model in self.models]

    def whole(self, results: Results) -> list[float]:
        """Accuracies of the networks before pruning."""
        return [results(Train(model, tested(self.scale)))["accuracy"] for model in self.models]

    def figure(self, results: Results) -> Figure:
        lines = [
            Line(label, self.sizes, tuple(fmean(self.accuracies(results, label, k)) for k in self.sizes))
            for label in self.methods
        ]
        lines.append(Line("as it was", (1.0,), (fmean(self.whole(results)),), style="dotted"))
        panel = Panel("", "share of the channels that is left", ACCURACY, tuple(lines))
        return Figure("pruning", "One network pruned", (panel,))

    def table(self, results: Results) -> Table:
        rows: tuple[Row, ...] = tuple(
            (label, *(Value.of(self.accuracies(results, label, k), digits=1) for k in self.sizes))
            for label in self.methods
        )
        columns = ("kept", *(f"{k:g}" for k in self.sizes))
        whole = Value.of(self.whole(results))
        note = f"The networks before pruning: {whole.mean:.2f} %."
        return Table("pruned", "One network pruned, accuracy (%)", columns, rows, note)


def vggs(scale: Scale) -> Pruning:
    models = [model for pair in vgg_pairs(scale) for model in (pair.a, pair.b)]
    return Pruning(models, scale, METHODS | {"clustering": CLUSTER_POST})


def cells(scale: Scale) -> list[Cell]:
    return vggs(scale).cells()


def report(scale: Scale, results: Results) -> Report:
    pruning = vggs(scale)
    middle = pruning.sizes[len(pruning.sizes) // 2]
    listed = ", ".join(
        f"{label} {fmean(pruning.accuracies(results, label, middle)):.1f} %" for label in pruning.methods
    )
    return Report(
        f"With {middle:g} of the channels kept: {listed}.",
        f"{setting(scale, vgg_pairs(scale))} Each network of the pairs is pruned alone.",
        (pruning.figure(results), pruning.table(results)),
    )


EXPERIMENT = Experiment(
    "pruning_vgg", "Generalised pruning of one VGG-11", ("fig: pruning_vgg",), "CIFAR-10", cells, report
)
