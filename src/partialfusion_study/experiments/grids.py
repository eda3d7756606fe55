"""The grid of most experiments: pairs × methods × alphas × shares, drawn as in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ..cell import Cell
from ..cells import Merge, Parents
from ..methods import MethodConfig
from ..recipes import Pair
from ..report import Figure, Line, Panel, Row, Table, Value
from .experiment import Results
from .settings import Scale, scaled, tested

FACTOR = "interpolation factor (share of B)"
ACCURACY = "accuracy (%)"
EQUAL = 0.5


@dataclass(frozen=True)
class Grid:
    """Pairs merged at every alpha and share. At alpha=1 this is the ensemble, which is computed from the parents.

    Attributes:
        pairs: pairs of networks.
        methods: label → how they are merged.
        alphas: the sizes.
        shares: shares of model B.
        scale: the scale of the study.
        fixed: spaces that stay isolated.
        equal_only: label → further methods, which are evaluated only at equal shares.
    """

    pairs: Sequence[Pair]
    methods: Mapping[str, MethodConfig]
    alphas: Sequence[float]
    shares: Sequence[float]
    scale: Scale
    fixed: tuple[str, ...] = ()
    equal_only: Mapping[str, MethodConfig] = field(default_factory=dict)

    @property
    def all_methods(self) -> dict[str, MethodConfig]:
        return {**self.methods, **self.equal_only}

    def cells(self) -> list[Cell]:
        merges = [
            self.cell(pair, config, alpha, share)
            for pair in self.pairs
            for label, config in self.all_methods.items()
            for alpha in self.alphas
            for share in (self.shares if label in self.methods else (EQUAL,))
            if alpha < 1
        ]
        return [*(self.parents(pair) for pair in self.pairs), *merges]

    def cell(self, pair: Pair, config: MethodConfig, alpha: float, share: float) -> Merge:
        return Merge(pair, scaled(config, self.scale), alpha, share, self.fixed, tested(self.scale))

    def parents(self, pair: Pair) -> Parents:
        return Parents(pair, tuple(self.shares), tested(self.scale))

    def accuracies(self, results: Results, label: str, alpha: float, share: float) -> list[float]:
        """One number per pair."""
        if alpha == 1:
            at = self.shares.index(share)
            return [results(self.parents(pair))["ensemble"][at] for pair in self.pairs]
        return [found["accuracy"] for found in self.found(results, label, alpha, share)]

    def found(self, results: Results, label: str, alpha: float, share: float) -> list[dict[str, Any]]:
        return [results(self.cell(pair, self.all_methods[label], alpha, share)) for pair in self.pairs]

    def panel(self, results: Results, label: str, *, title: str | None = None) -> Panel:
        """Accuracy against the share of B, with a line for each alpha."""
        lines = [self.line(results, label, alpha, f"α = {alpha:g}", colour=alpha) for alpha in self.alphas]
        return Panel(title or label, FACTOR, ACCURACY, tuple(lines))

    def line(self, results: Results, label: str, alpha: float, name: str, *, colour: float | None = None) -> Line:
        ys = tuple(fmean(self.accuracies(results, label, alpha, share)) for share in self.shares)
        return Line(name, tuple(self.shares), ys, style="dashed" if alpha == 1 else "line", colour=colour)

    def figures(self, results: Results, title: str) -> tuple[Figure, Figure]:
        """A panel for each method against the share, and all methods at equal shares against alpha."""
        panels = tuple(self.panel(results, label) for label in self.methods)
        equal = Figure("equal-shares", f"{title}: equal shares", (self.compared(results),))
        return Figure("curves", f"{title}: all shares", panels), equal

    def compared(self, results: Results) -> Panel:
        """Accuracy at equal shares against alpha, with a line for each method."""
        xs = tuple(self.alphas)
        lines = [
            Line(label, xs, tuple(fmean(self.accuracies(results, label, a, EQUAL)) for a in xs))
            for label in self.all_methods
        ]
        return Panel("", "α", ACCURACY, tuple(lines))

    def table(self, results: Results, name: str, title: str, *, note: str = "") -> Table:
        """Accuracy at equal shares, with a row for each method and a column for each alpha."""
        rows: list[Row] = [
            (label, *(Value.of(self.accuracies(results, label, alpha, EQUAL)) for alpha in self.alphas))
            for label in self.all_methods
        ]
        return Table(name, title, ("", *(f"α = {a:g}" for a in self.alphas)), tuple(rows), note)

    def overall(self, results: Results) -> str:
        """A sentence with the mean of every method over all sizes and all shares strictly between 0 and 1."""
        between = [(a, s) for a in self.alphas if a < 1 for s in self.shares if 0 < s < 1]
        listed = ", ".join(
            f"{label} {fmean(fmean(self.accuracies(results, label, a, s)) for a, s in between):.2f} %"
            for label in self.methods
        )
        return f"Mean over all sizes and over shares strictly between 0 and 1: {listed}."

    def reference(self, results: Results) -> Table:
        """The networks alone."""
        found = [results(self.parents(pair)) for pair in self.pairs]
        values = tuple(Value.of(f[name] for f in found) for name in ("a", "b"))
        return Table("parents", "The networks alone, accuracy (%)", ("model A", "model B"), (values,))
