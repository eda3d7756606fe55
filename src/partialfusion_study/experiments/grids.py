"""The grid most experiments share: pairs × ways × alphas × interpolation factors, drawn as the paper draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ..cell import Cell
from ..cells import Merge, Parents
from ..recipes import Pair
from ..report import Figure, Line, Panel, Row, Table, Value
from ..ways import Way
from .experiment import Results
from .settings import Scale, scaled, tested

FACTOR = "interpolation factor (share of B)"
ACCURACY = "accuracy (%)"
EQUAL = 0.5


@dataclass(frozen=True)
class Grid:
    """Merged pairs at every alpha and share. At alpha=1 they are the ensemble, which the parents alone give.

    Attributes:
        pairs: of networks.
        ways: label → how they are merged.
        alphas: sizes.
        shares: of model B.
        scale: of the study.
        fixed: spaces that stay apart.
        midway: label → further ways, measured at equal shares only.
    """

    pairs: Sequence[Pair]
    ways: Mapping[str, Way]
    alphas: Sequence[float]
    shares: Sequence[float]
    scale: Scale
    fixed: tuple[str, ...] = ()
    midway: Mapping[str, Way] = field(default_factory=dict)

    @property
    def all_ways(self) -> dict[str, Way]:
        return {**self.ways, **self.midway}

    def cells(self) -> list[Cell]:
        merges = [
            self.cell(pair, way, alpha, share)
            for pair in self.pairs
            for label, way in self.all_ways.items()
            for alpha in self.alphas
            for share in (self.shares if label in self.ways else (EQUAL,))
            if alpha < 1
        ]
        return [*(self.parents(pair) for pair in self.pairs), *merges]

    def cell(self, pair: Pair, way: Way, alpha: float, share: float) -> Merge:
        return Merge(pair, scaled(way, self.scale), alpha, share, self.fixed, tested(self.scale))

    def parents(self, pair: Pair) -> Parents:
        return Parents(pair, tuple(self.shares), tested(self.scale))

    def accuracies(self, results: Results, label: str, alpha: float, share: float) -> list[float]:
        """One number per pair."""
        if alpha == 1:
            at = self.shares.index(share)
            return [results(self.parents(pair))["ensemble"][at] for pair in self.pairs]
        return [found["accuracy"] for found in self.found(results, label, alpha, share)]

    def found(self, results: Results, label: str, alpha: float, share: float) -> list[dict[str, Any]]:
        return [results(self.cell(pair, self.all_ways[label], alpha, share)) for pair in self.pairs]

    def panel(self, results: Results, label: str, *, title: str | None = None) -> Panel:
        """Accuracy against the share of B, a line per alpha."""
        lines = [self.line(results, label, alpha, f"α = {alpha:g}", colour=alpha) for alpha in self.alphas]
        return Panel(title or label, FACTOR, ACCURACY, tuple(lines))

    def line(self, results: Results, label: str, alpha: float, name: str, *, colour: float | None = None) -> Line:
        ys = tuple(fmean(self.accuracies(results, label, alpha, share)) for share in self.shares)
        return Line(name, tuple(self.shares), ys, style="dashed" if alpha == 1 else "line", colour=colour)

    def figures(self, results: Results, title: str) -> tuple[Figure, Figure]:
        """A panel per way against the share, and all ways at equal shares against alpha."""
        panels = tuple(self.panel(results, label) for label in self.ways)
        equal = Figure("equal-shares", f"{title}: equal shares", (self.compared(results),))
        return Figure("curves", f"{title}: all shares", panels), equal

    def compared(self, results: Results) -> Panel:
        """Accuracy at equal shares against alpha, a line per way."""
        xs = tuple(self.alphas)
        lines = [
            Line(label, xs, tuple(fmean(self.accuracies(results, label, a, EQUAL)) for a in xs))
            for label in self.all_ways
        ]
        return Panel("", "α", ACCURACY, tuple(lines))

    def table(self, results: Results, name: str, title: str, *, note: str = "") -> Table:
        """A row per way, a column per alpha, at equal shares."""
        rows: list[Row] = [
            (label, *(Value.of(self.accuracies(results, label, alpha, EQUAL)) for alpha in self.alphas))
            for label in self.all_ways
        ]
        return Table(name, title, ("", *(f"α = {a:g}" for a in self.alphas)), tuple(rows), note)

    def overall(self, results: Results) -> str:
        """The mean of every way over all sizes and shares strictly between the ends, as a sentence."""
        between = [(a, s) for a in self.alphas if a < 1 for s in self.shares if 0 < s < 1]
        listed = ", ".join(
            f"{label} {fmean(fmean(self.accuracies(results, label, a, s)) for a, s in between):.2f} %"
            for label in self.ways
        )
        return f"Mean over sizes and shares between the ends: {listed}."

    def reference(self, results: Results) -> Table:
        """The parents alone."""
        found = [results(self.parents(pair)) for pair in self.pairs]
        values = tuple(Value.of(f[name] for f in found) for name in ("a", "b"))
        return Table("parents", "The networks alone, accuracy (%)", ("model A", "model B"), (values,))
