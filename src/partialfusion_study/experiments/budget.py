"""Our own experiment: a budget against one alpha for all layers, and against the paper's three fixed layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ..cell import Cell
from ..cells import Merge, Spend
from ..methods import ACTIVATIONS, PARTIAL_OT, REFIT, MethodConfig
from ..recipes import Pair
from ..report import Figure, Line, Panel, Row, Table, Value
from .experiment import Experiment, Report, Results
from .fixed_layers import LAYERS
from .grids import ACCURACY, EQUAL
from .runs import measured
from .settings import Scale, mnist_pairs, scaled, setting, tested, vgg_pairs

SIZES = (0.2, 0.4, 0.6, 0.8)
METHODS = {"weights": PARTIAL_OT, "activations": ACTIVATIONS, "weights, refitted": REFIT}


@dataclass(frozen=True)
class Comparison:
    """Fusions of some pairs, and fusions within budgets of the same sizes."""

    name: str
    title: str
    pairs: Sequence[Pair]
    scale: Scale
    fixed: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[float, ...]:
        return (0.5,) if self.scale == "quick" else SIZES

    def cells(self) -> list[Cell]:
        return [
            kind(pair, scaled(config, self.scale), alpha, EQUAL, self.fixed, tested(self.scale))
            for pair in self.pairs
            for config in METHODS.values()
            for alpha in self.sizes
            for kind in (Merge, Spend)
        ]

    def found(
        self, results: Results, kind: type[Merge] | type[Spend], config: MethodConfig, alpha: float, what: str
    ) -> list[float]:
        made = scaled(config, self.scale)
        return [results(kind(pair, made, alpha, EQUAL, self.fixed, tested(self.scale)))[what] for pair in self.pairs]

    def table(self, results: Results) -> Table:
        against = f"{len(self.fixed)} fixed layers" if self.fixed else "one alpha for all"
        rows: list[Row] = []
        for label, config in METHODS.items():
            for kind, words in ((Merge, against), (Spend, "budget of the same size")):
                values = [Value.of(self.found(results, kind, config, a, "accuracy")) for a in self.sizes]
                rows.append((f"{label}: {words}", *values))
        sizes = [fmean(self.found(results, Merge, PARTIAL_OT, a, "ratio")) for a in self.sizes]
        columns = ("effective parameters, relative to one model", *(f"{size:.2f}×" for size in sizes))
        return Table(self.name, f"{self.title}: accuracy (%)", columns, tuple(rows))

    def figure(self, results: Results) -> Figure:
        panels = tuple(self.panel(results, label) for label in METHODS)
        return Figure(f"{self.name}-curves", self.title, panels)

    def panel(self, results: Results, label: str) -> Panel:
        xs = tuple(fmean(self.found(results, Merge, METHODS[label], a, "ratio")) for a in self.sizes)
        lines = [
            Line.of(words, xs, (self.found(results, kind, METHODS[label], a, "accuracy") for a in self.sizes))
            for kind, words in ((Merge, "as given"), (Spend, "budget of the same size"))
        ]
        return Panel(f"{self.title}, {label}", "effective parameters, relative to one model", ACCURACY, tuple(lines))

    def wins(self, results: Results) -> tuple[int, int, float]:
        """In how many cases the budget is ahead, the number of cases, and the average difference."""
        gaps = [
            fmean(self.found(results, Spend, config, a, "accuracy"))
            - fmean(self.found(results, Merge, config, a, "accuracy"))
            for config in METHODS.values()
            for a in self.sizes
        ]
        return sum(gap > 0 for gap in gaps), len(gaps), fmean(gaps)


def comparisons(scale: Scale) -> list[Comparison]:
    return [
        Comparison("split", "MLPs on split MNIST", mnist_pairs(True, scale), scale),
        Comparison("same", "MLPs on MNIST", mnist_pairs(False, scale), scale),
        Comparison("vgg", "VGG-11 on CIFAR-10", vgg_pairs(scale), scale),
        Comparison("vgg-fixed", "VGG-11 on CIFAR-10, three fixed layers", vgg_pairs(scale), scale, LAYERS),
    ]


def cells(scale: Scale) -> list[Cell]:
    return [cell for comparison in comparisons(scale) for cell in comparison.cells()]


def report(scale: Scale, results: Results) -> Report:
    found = comparisons(scale)
    findings = []
    for comparison in found:
        ahead, of, gap = comparison.wins(results)
        findings.append(
            f"{comparison.title}: the budget is better in {ahead} of {of} cases, {gap:+.2f} points on average"
        )
    every = [comparison.wins(results) for comparison in found]
    finding = f"The budget is better in {sum(wins[0] for wins in every)} of {sum(wins[1] for wins in every)} cases."
    figures = tuple(measured(results, comparison.figure) for comparison in found)
    text = (
        f"{setting(scale, mnist_pairs(True, scale))} {setting(scale, vgg_pairs(scale))} Shares are equal. A budget "
        "gives every layer the alpha that saves most of the matching cost per parameter; it uses no labels and no test "
        "images."
    )
    tables = (measured(results, comparison.table) for comparison in found)
    return Report(finding, f"{text}\n\n{'; '.join(findings)}.", (*figures, *tables))


EXPERIMENT = Experiment(
    "budget", "Budgets against one alpha for all layers (ours)", (), "MNIST, CIFAR-10", cells, report
)
