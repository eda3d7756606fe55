"""The grid of most experiments: pairs × methods × alphas × shares, drawn as in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

from ..cell import Cell
from ..cells import Merge, Parents
from ..methods import MethodConfig
from ..recipes import Pair
from ..report import Figure, Line, Panel, Row, Table, Value, Verdict
from .runs import Results, measured
from .settings import ALPHAS, Scale, scaled, shares, tested

FACTOR = "interpolation factor (share of B)"
ACCURACY = "accuracy (%)"
EQUAL = 0.5


def with_spread(samples: Sequence[float], sign: str = "", *, digits: int = 2) -> str:
    """Mean and deviation of one number per pair: 86.90 ± 0.31; with the sign "+", also of positive numbers."""
    found = Value.of(samples)
    mean = f"{found.mean:{sign}.{digits}f}"
    return mean if found.std is None else f"{mean} ± {found.std:.{digits}f}"


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

    def mean(self, results: Results, label: str, alpha: float, share: float = EQUAL) -> float:
        """The mean accuracy over the pairs."""
        return fmean(self.accuracies(results, label, alpha, share))

    def gaps(self, results: Results, one: str, other: str, alpha: float) -> list[float]:
        """How far a method is ahead of another at equal shares, in points, pair by pair."""
        both = (self.accuracies(results, label, alpha, EQUAL) for label in (one, other))
        return [a - b for a, b in zip(*both, strict=True)]

    def losses(self, results: Results, label: str, alpha: float = 0.0) -> list[float]:
        """How far a method at equal shares is below the mean of the two networks, in points, pair by pair."""
        alone = (results(self.parents(pair)) for pair in self.pairs)
        found = self.accuracies(results, label, alpha, EQUAL)
        return [fmean((f["a"], f["b"])) - accuracy for f, accuracy in zip(alone, found, strict=True)]

    @property
    def over(self) -> str:
        """How many pairs there are, in words."""
        return "one pair" if len(self.pairs) == 1 else f"{len(self.pairs)} pairs"

    def found(self, results: Results, label: str, alpha: float, share: float) -> list[dict[str, Any]]:
        return [results(self.cell(pair, self.all_methods[label], alpha, share)) for pair in self.pairs]

    @property
    def between(self) -> list[float]:
        """The shares strictly between 0 and 1."""
        return [share for share in self.shares if 0 < share < 1]

    @property
    def fused_alphas(self) -> list[float]:
        """The sizes below that of the ensemble."""
        return [alpha for alpha in self.alphas if alpha < 1]

    def alone(self, results: Results) -> tuple[float, float]:
        """The mean accuracies of models A and B."""
        found = [results(self.parents(pair)) for pair in self.pairs]
        return fmean(f["a"] for f in found), fmean(f["b"] for f in found)

    def steps(self, results: Results, label: str, shares: Sequence[float]) -> list[bool]:
        """Whether the mean accuracy does not fall, for every step between measured alphas and every share."""
        curves = [[self.mean(results, label, alpha, share) for alpha in self.alphas] for share in shares]
        return [after >= before for curve in curves for before, after in pairwise(curve)]

    def rising(self, results: Results, label: str, claim: str) -> Verdict:
        """The verdict on the claim that the accuracy rises with every measured alpha, at every share in between."""
        inside = self.between if label in self.methods else [EQUAL]
        steps, equal = (self.steps(results, label, found) for found in (inside, [EQUAL]))
        low, top = (self.mean(results, label, alpha) for alpha in (self.alphas[0], self.alphas[-1]))
        figures = f"{self.over}, equal shares: {low:.2f} to {top:.2f} %, rising in {sum(equal)} of {len(equal)} steps"
        found = Verdict.of(claim, steps, figures, cases="steps at all shares between 0 and 1")
        papers = [share for share in shares("full") if 0 < share < 1]
        return found.among("α", ALPHAS, self.alphas).among("shares of B", papers, inside)

    def panel(self, results: Results, label: str, *, title: str | None = None) -> Panel:
        """Accuracy against the share of B, with a line for each alpha."""
        lines = [self.line(results, label, alpha, f"α = {alpha:g}", colour=alpha) for alpha in self.alphas]
        return Panel(title or label, FACTOR, ACCURACY, tuple(lines))

    def line(self, results: Results, label: str, alpha: float, name: str, *, colour: float | None = None) -> Line:
        samples = (self.accuracies(results, label, alpha, share) for share in self.shares)
        return Line.of(name, self.shares, samples, style="dashed" if alpha == 1 else "line", colour=colour)

    def figures(self, results: Results, title: str) -> tuple[Figure, Figure]:
        """A panel for each method against the share, and all methods at equal shares against alpha."""
        return (
            measured(
                results,
                lambda r: Figure(
                    "curves", f"{title}: all shares", tuple(self.panel(r, label) for label in self.methods)
                ),
            ),
            self.equal_figure(results, f"{title}: equal shares"),
        )

    def equal_figure(self, results: Results, title: str) -> Figure:
        """All methods at equal shares against alpha."""
        return measured(results, lambda r: Figure("equal-shares", title, (self.compared(r),)))

    def compared(self, results: Results) -> Panel:
        """Accuracy at equal shares against alpha, with a line for each method."""
        lines = [
            Line.of(label, self.alphas, (self.accuracies(results, label, alpha, EQUAL) for alpha in self.alphas))
            for label in self.all_methods
        ]
        return Panel("", "α", ACCURACY, tuple(lines))

    def table(self, results: Results, name: str, title: str, *, note: str = "") -> Table:
        """Accuracy at equal shares, with a row for each method and a column for each alpha."""

        def build(results: Results) -> Table:
            rows: list[Row] = [
                (label, *(Value.of(self.accuracies(results, label, alpha, EQUAL)) for alpha in self.alphas))
                for label in self.all_methods
            ]
            return Table(name, title, ("", *(f"α = {a:g}" for a in self.alphas)), tuple(rows), note)

        return measured(results, build)

    def overall(self, results: Results) -> str:
        """A sentence with the mean of every method over all sizes and all shares strictly between 0 and 1."""
        listed = ", ".join(f"{label} {self.overall_mean(results, label):.2f} %" for label in self.methods)
        return f"Mean over all sizes and over shares strictly between 0 and 1: {listed}."

    def overall_mean(self, results: Results, label: str) -> float:
        """The mean of a method over all sizes and all shares strictly between 0 and 1."""
        return fmean(self.mean(results, label, a, s) for a in self.fused_alphas for s in self.between)

    def reference(self, results: Results) -> Table:
        """The networks alone."""

        def build(results: Results) -> Table:
            found = [results(self.parents(pair)) for pair in self.pairs]
            values = tuple(Value.of(f[name] for f in found) for name in ("a", "b"))
            return Table("parents", "The networks alone, accuracy (%)", ("model A", "model B"), (values,))

        return measured(results, build)
