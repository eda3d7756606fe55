"""One network pruned in several ways to several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ..cell import Cell
from ..cells import Compress, Train
from ..recipes import Training
from ..report import Figure, Line, Panel, Row, Table, Value
from ..ways import CLUSTER, OURS, OURS_REFIT, PRUNING, PRUNING_OT, Way
from .experiment import Results
from .grids import ACCURACY
from .settings import Scale, scaled, tested

WAYS: dict[str, Way] = {
    "pruning": PRUNING,
    "pruning + OT post-processing": PRUNING_OT,
    "clustering": CLUSTER,
    "clustering with exchange (ours)": OURS,
    "clustering with exchange, refitted (ours)": OURS_REFIT,
}


@dataclass(frozen=True)
class Pruning:
    """Networks × ways × sizes."""

    models: Sequence[Training]
    scale: Scale
    ways: Mapping[str, Way] = field(default_factory=lambda: WAYS)

    @property
    def sizes(self) -> tuple[float, ...]:
        return (0.5,) if self.scale == "quick" else tuple(k / 10 for k in range(1, 10))

    def cells(self) -> list[Cell]:
        return [self.cell(m, w, k) for m in self.models for w in self.ways.values() for k in self.sizes]

    def cell(self, model: Training, way: Way, keep: float) -> Compress:
        return Compress(model, scaled(way, self.scale), keep, tested(self.scale))

    def accuracies(self, results: Results, label: str, keep: float) -> list[float]:
        return [results(self.cell(model, self.ways[label], keep))["accuracy"] for model in self.models]

    def whole(self, results: Results) -> list[float]:
        """The networks as they were."""
        return [results(Train(model, tested(self.scale)))["accuracy"] for model in self.models]

    def figure(self, results: Results) -> Figure:
        lines = [
            Line(label, self.sizes, tuple(fmean(self.accuracies(results, label, k)) for k in self.sizes))
            for label in self.ways
        ]
        lines.append(Line("as it was", (1.0,), (fmean(self.whole(results)),), style="dotted"))
        panel = Panel("", "share of the channels that is left", ACCURACY, tuple(lines))
        return Figure("pruning", "One network pruned", (panel,))

    def table(self, results: Results) -> Table:
        rows: tuple[Row, ...] = tuple(
            (label, *(Value.of(self.accuracies(results, label, k), digits=1) for k in self.sizes))
            for label in self.ways
        )
        columns = ("left", *(f"{k:g}" for k in self.sizes))
        whole = Value.of(self.whole(results))
        note = f"The networks as they were: {whole.mean:.2f} %."
        return Table("pruned", "One network pruned, accuracy (%)", columns, rows, note)
