"""One network pruned by several methods to several sizes; the experiment on VGG-11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ..cell import Cell
from ..cells import Compress, Train
from ..methods import (
    AFTER_RELU,
    CLUSTER,
    CLUSTERING,
    EXCHANGE,
    EXCHANGE_REFIT,
    OURS,
    OURS_REFIT,
    PRUNING,
    PRUNING_OT,
    MethodConfig,
)
from ..recipes import Recipe
from ..report import Figure, Line, Panel, Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import ACCURACY
from .runs import measured
from .settings import Scale, scaled, setting, tested, vgg_pairs

PLAIN, POST = "pruning", "pruning + OT post-processing"
METHODS: dict[str, MethodConfig] = {
    PLAIN: PRUNING,
    POST: PRUNING_OT,
    CLUSTERING: CLUSTER,
    EXCHANGE: OURS,
    EXCHANGE_REFIT: OURS_REFIT,
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

    def claims(self, results: Results, networks: str) -> list[Verdict]:
        """The verdicts on what is better than what, at every size."""
        return [
            self.ahead(results, CLUSTERING, PLAIN, f"For {networks}, clustering improves on pruning."),
            self.ahead(results, CLUSTERING, POST, f"For {networks}, clustering improves on OT post-processing."),
        ]

    def regimes(self, results: Results) -> Verdict:
        """The verdict on where deleting channels costs more than blurring them."""
        gaps = {k: self.mean(results, PLAIN, k) - self.mean(results, POST, k) for k in self.sizes if k != 0.4}
        return Verdict.of(
            "Above 0.4 of the size plain pruning is better than OT post-processing, below it is worse.",
            [(gap > 0) == (k > 0.4) for k, gap in gaps.items()],
            "pruning minus post-processing: " + ", ".join(f"{gap:+.1f} ({k:g})" for k, gap in gaps.items()),
            cases="sizes",
        )

    def ahead(self, results: Results, one: str, other: str, claim: str) -> Verdict:
        gaps = {k: self.mean(results, one, k) - self.mean(results, other, k) for k in self.sizes}
        listed = ", ".join(f"{gap:+.1f} ({k:g})" for k, gap in gaps.items())
        return Verdict.of(
            claim, [gap > 0 for gap in gaps.values()], f"points at the fraction kept: {listed}", cases="sizes"
        )

    def mean(self, results: Results, label: str, keep: float) -> float:
        return fmean(self.accuracies(results, label, keep))

    def figure(self, results: Results) -> Figure:
        return measured(results, self._figure)

    def _figure(self, results: Results) -> Figure:
        lines = [
            Line.of(label, self.sizes, (self.accuracies(results, label, k) for k in self.sizes))
            for label in self.methods
        ]
        lines.append(Line("as it was", (1.0,), (fmean(self.whole(results)),), style="dotted"))
        panel = Panel("", "share of the channels that is left", ACCURACY, tuple(lines))
        return Figure("pruning", "One network pruned", (panel,))

    def table(self, results: Results) -> Table:
        return measured(results, self._table)

    def _table(self, results: Results) -> Table:
        rows: tuple[Row, ...] = tuple(
            (label, *(Value.of(self.accuracies(results, label, k), digits=1) for k in self.sizes))
            for label in self.methods
        )
        columns = ("kept", *(f"{k:g}" for k in self.sizes))
        whole = Value.of(self.whole(results))
        note = f"The networks before pruning: {whole.mean:.2f} %."
        return Table("pruned", "One network pruned, accuracy (%)", columns, rows, note)


def vggs(scale: Scale) -> Pruning:
    models = list(dict.fromkeys(model for pair in vgg_pairs(scale) for model in (pair.a, pair.b)))
    return Pruning(models, scale, METHODS | AFTER_RELU)


def cells(scale: Scale) -> list[Cell]:
    return vggs(scale).cells()


def report(scale: Scale, results: Results) -> Report:
    pruning = vggs(scale)
    middle = pruning.sizes[len(pruning.sizes) // 2]
    listed = ", ".join(f"{label} {pruning.mean(results, label, middle):.1f} %" for label in (PLAIN, CLUSTERING))
    return Report(
        f"With {middle:g} of the channels kept: {listed}.",
        f"{setting(scale, vgg_pairs(scale))} Each of these networks is pruned alone.",
        (pruning.figure(results), pruning.table(results)),
    )


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    pruning = vggs(scale)
    return [
        pruning.ahead(results, POST, PLAIN, "For VGG-11, OT post-processing improves on pruning."),
        *pruning.claims(results, "VGG-11"),
    ]


EXPERIMENT = Experiment(
    "pruning_vgg", "Generalised pruning of one VGG-11", ("Figure 9",), "CIFAR-10", cells, report, claims
)
