"""Our own experiment: shares chosen on labelled images, against equal shares and the best on the test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ..cell import Cell
from ..cells import Merge, Mixed
from ..methods import PARTIAL_OT
from ..recipes import Pair
from ..report import Row, Table, Value
from .experiment import Experiment, Report, Results
from .grids import EQUAL
from .runs import measured
from .settings import Scale, mnist_pairs, scaled, setting, shares, tested, vgg_pairs

SIZES = (0.0, 0.2, 0.4)


@dataclass(frozen=True)
class Choice:
    """Shares chosen for some pairs, on several numbers of labelled images."""

    name: str
    title: str
    pairs: Sequence[Pair]
    counts: tuple[int, ...]
    scale: Scale
    coarse: bool = False

    @property
    def sizes(self) -> tuple[float, ...]:
        return (0.5,) if self.scale == "quick" else SIZES

    @property
    def labelled(self) -> tuple[int, ...]:
        return (100,) if self.scale == "quick" else self.counts

    @property
    def shares(self) -> tuple[float, ...]:
        return shares(self.scale, coarse=self.coarse)

    def merge(self, pair: Pair, alpha: float, share: float) -> Merge:
        return Merge(pair, scaled(PARTIAL_OT, self.scale), alpha, share, (), tested(self.scale))

    def mixed(self, pair: Pair, alpha: float, count: int) -> Mixed:
        return Mixed(pair, scaled(PARTIAL_OT, self.scale), alpha, count, tested(self.scale))

    def cells(self) -> list[Cell]:
        places = [(pair, alpha) for pair in self.pairs for alpha in self.sizes]
        merges = [self.merge(pair, alpha, share) for pair, alpha in places for share in self.shares]
        return [*merges, *(self.mixed(pair, alpha, count) for pair, alpha in places for count in self.labelled)]

    def equal(self, results: Results, alpha: float) -> list[float]:
        return [results(self.merge(pair, alpha, EQUAL))["accuracy"] for pair in self.pairs]

    def found(self, results: Results, alpha: float, count: int, what: str = "accuracy") -> list[float]:
        return [results(self.mixed(pair, alpha, count))[what] for pair in self.pairs]

    def best(self, results: Results, alpha: float) -> list[float]:
        return [max(results(self.merge(p, alpha, share))["accuracy"] for share in self.shares) for p in self.pairs]

    def table(self, results: Results) -> Table:
        rows: list[Row] = [("equal shares", *(Value.of(self.equal(results, a)) for a in self.sizes))]
        for count in self.labelled:
            values = [Value.of(self.found(results, a, count)) for a in self.sizes]
            rows.append((f"chosen on {count:,} images", *values))
        rows.append(("best on the test images", *(Value.of(self.best(results, a)) for a in self.sizes)))
        columns = ("", *(f"α = {a:g}" for a in self.sizes))
        return Table(self.name, f"{self.title}: accuracy (%)", columns, tuple(rows))

    def choices(self, results: Results) -> Table:
        rows: list[Row] = []
        for count in self.labelled:
            for what, label in (("share", "share of B"), ("alike", "mixes within two standard errors of the best (%)")):
                values = [Value.of(self.found(results, a, count, what)) for a in self.sizes]
                rows.append((f"{count:,} images: {label}", *values))
        columns = ("", *(f"α = {a:g}" for a in self.sizes))
        return Table(f"{self.name}-choices", f"{self.title}: the chosen shares", columns, tuple(rows))

    def gain(self, results: Results) -> float:
        """What shares chosen on the most images gain over equal ones, in points, on average over the sizes."""
        most = self.labelled[-1]
        return fmean(fmean(self.found(results, a, most)) - fmean(self.equal(results, a)) for a in self.sizes)

    def finding(self, results: Results) -> str:
        most = self.labelled[-1]
        left = fmean(fmean(self.best(results, a)) - fmean(self.found(results, a, most)) for a in self.sizes)
        return (
            f"{self.title}: with {most:,} images, {self.gain(results):+.2f} points relative to equal shares and "
            f"{-left:+.2f} relative to the best share on the test images"
        )


def choices(scale: Scale) -> list[Choice]:
    return [
        Choice("split", "MLPs on split MNIST", mnist_pairs(True, scale), (100, 1000, 5000), scale),
        Choice("same", "MLPs on MNIST", mnist_pairs(False, scale), (100, 1000, 5000), scale),
        Choice("vgg", "VGG-11 on CIFAR-10", vgg_pairs(scale), (100, 1000, 2500), scale, coarse=True),
    ]


def cells(scale: Scale) -> list[Cell]:
    return [cell for choice in choices(scale) for cell in choice.cells()]


def report(scale: Scale, results: Results) -> Report:
    found = choices(scale)
    text = (
        f"{setting(scale, mnist_pairs(True, scale))} {setting(scale, vgg_pairs(scale))} Partial OT matches by "
        "weights. The labelled images of MNIST are training images, some of which the networks have seen; those of "
        "CIFAR-10 are held out. The last row of each table takes, for every pair, the share with the best test "
        "accuracy on a grid: the result of a perfect choice on that grid."
    )
    tables = [measured(results, table) for choice in found for table in (choice.table, choice.choices)]
    every = "; ".join(choice.finding(results) for choice in found)
    split = found[0]
    finding = (
        f"Shares chosen on {split.labelled[-1]:,} images gain {split.gain(results):.2f} points over equal shares on "
        "MLPs of split MNIST."
    )
    return Report(finding, f"{text}\n\n{every}.", tuple(tables))


EXPERIMENT = Experiment("mix", "Shares chosen on labelled images (ours)", (), "MNIST, CIFAR-10", cells, report)
