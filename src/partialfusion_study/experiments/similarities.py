"""Distances between channels, within a network and across two, as tables and histograms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from partialfusion.core.literals import Site

from ..cell import Cell
from ..cells import Similarity
from ..recipes import Pair
from ..report import Figure, Line, Panel, Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import with_spread
from .runs import measured
from .settings import Scale, setting

KINDS = ("within_a", "within_b", "a_to_b", "b_to_a")
NAMES = {"within_a": "within A", "within_b": "within B", "a_to_b": "A→B", "b_to_a": "B→A"}
NEAR = 0.8  # the fraction of channels that count as least isolated
Layers = list[dict[str, Any]]  # what was measured in one pair, layer by layer
Rows = Sequence[Sequence[float]]  # a row of numbers for each layer, of one pair


@dataclass(frozen=True)
class Distances:
    """What every experiment here reads: the distances between the channels of some pairs.

    Attributes:
        data: the data set.
        pairs: scale → pairs.
        site: where activations are taken.
    """

    data: str
    pairs: Callable[[Scale], list[Pair]]
    site: Site

    def cells(self, scale: Scale) -> list[Cell]:
        return [*self._cells(scale)]

    def _cells(self, scale: Scale) -> list[Similarity]:
        return [Similarity(pair, 100 if scale == "quick" else 1000, self.site) for pair in self.pairs(scale)]

    def layers(self, scale: Scale, results: Results) -> list[Layers]:
        """What was measured, pair by pair and layer by layer, of the channels that are alive."""
        return [[_alive(layer) for layer in found] for found in self._measured(scale, results)]

    def _measured(self, scale: Scale, results: Results) -> list[Layers]:
        return [results(cell)["layers"] for cell in self._cells(scale)]

    def text(self, scale: Scale, results: Results) -> str:
        """The setting in words."""
        where = "before" if self.site == "pre" else "after"
        return (
            f"{setting(scale, self.pairs(scale))} Distances are Euclidean, between activation vectors on 1,000 "
            f"training images, taken {where} the activation function (and pooling, where there is any). Distances of "
            "convolution channels are divided by the square root of the number of positions. The paper does not state "
            "its scale, so only ratios are compared with it. The paper measures one pair. "
            f"{_alike(self.pairs(scale))}{self._dead(scale, results)}"
        )

    def _dead(self, scale: Scale, results: Results) -> str:
        """A sentence on dead channels, where there are any."""
        listed = []
        for number, layer in enumerate(zip(*self._measured(scale, results), strict=True), start=1):
            a, b = (sum(sum(_is_dead(found, name)) for found in layer) for name in "ab")
            if a or b:
                every = sum(found["width"] for found in layer)
                listed.append(f"in layer {number}, {a} of the {every} channels of A and {b} of those of B")
        if not listed:
            return ""
        return (
            f"Dead channels, whose activations are zero on all images, are left out: {'; '.join(listed)}. They are at "
            "distance zero from each other, which would count as unusually similar. The distances of the other "
            "channels to them still count."
        )


def _is_dead(layer: dict[str, Any], model: str) -> list[bool]:
    """Channel by channel of model "a" or "b", whether another one is at distance zero: no two that fire are."""
    across = "a_to_b" if model == "a" else "b_to_a"
    both = zip(layer[f"nearest_within_{model}"], layer[f"nearest_{across}"], strict=True)
    return [0 in distances for distances in both]


def _alive(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer without the numbers of its dead channels."""
    found = dict(layer)
    for kind in KINDS:
        dead = _is_dead(layer, "b" if kind in ("within_b", "b_to_a") else "a")
        for what in ("nearest", "mean"):
            numbers = layer[f"{what}_{kind}"]
            found[f"{what}_{kind}"] = [x for x, gone in zip(numbers, dead, strict=True) if not gone]
    return found


def nearer(values: Sequence[float]) -> list[float]:
    """The smallest distances, without those of the most isolated channels."""
    return sorted(values)[: round(NEAR * len(values))]


def _alike(pairs: Sequence[Pair]) -> str:
    """A sentence on what is the same for A and for B, where every network is both."""
    if {pair.a for pair in pairs} != {pair.b for pair in pairs}:
        return ""
    return "Every network is A in one pair and B in another, so the means within A and within B are the same. "


def full(
    name: str,
    title: str,
    references: tuple[str, ...],
    distances: Distances,
    published: tuple[Rows, Rows],
    *,
    further: Callable[[Scale, Results, Sequence[Rows]], Sequence[Verdict]] = lambda *_: (),
    beside: Callable[[Scale], Sequence[Cell]] = lambda _: (),
) -> Experiment:
    """The long table: nearest and mean distances of all channels and of the least isolated ones, and their ratios.

    Args:
        name: name of the experiment.
        title: title of the experiment.
        references: the paper's tables and figures, by number.
        distances: what is measured.
        published: the paper's rows of eight numbers: of all channels and of the least isolated ones.
        further: scale, results and our rows of all channels, pair by pair → verdicts on further claims.
        beside: further cells that these look at.
    """

    def cells(scale: Scale) -> list[Cell]:
        return [*distances.cells(scale), *beside(scale)]

    def report(scale: Scale, results: Results) -> Report:
        def rows(results: Results, keep: Callable[[Sequence[float]], list[float]]) -> list[Rows]:
            return [_rows(layers, keep) for layers in distances.layers(scale, results)]

        tables = (
            measured(results, lambda r: _table("all", "All channels", rows(r, list))),
            measured(results, lambda r: _table("near", "The 80 % least isolated channels", rows(r, nearer))),
            measured(
                results,
                lambda r: _ratios(rows(r, list), rows(r, nearer), published if scale != "quick" else None),
            ),
        )
        smaller = fmean(map(reduction, rows(results, list), rows(results, nearer)))
        finding = f"Without the 20 % most isolated channels, nearest distances are {smaller:.0f} % smaller on average."
        return Report(finding, distances.text(scale, results), tables)

    def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
        pairs = distances.layers(scale, results)
        everyone, close = ([_rows(layers, keep) for layers in pairs] for keep in (list, nearer))
        ours, theirs = [*map(reduction, everyone, close)], reduction(*published)
        isolated = Verdict.of_size(
            "Leaving the 20 % least similar channels out makes the others significantly more similar.",
            fmean(ours),
            theirs,
            f"nearest distances {with_spread(ours, digits=1)} % smaller on average (paper: {theirs:.0f} %)",
        )
        return [isolated, *further(scale, results, everyone)]

    return Experiment(name, title, references, distances.data, cells, report, claims)


def summary(
    name: str,
    title: str,
    references: tuple[str, ...],
    distances: Distances,
    published: Rows,
) -> Experiment:
    """The short table: the nearest distances within and across, and which are smaller. Arguments as in `full`."""

    def nearest(scale: Scale, results: Results) -> list[Sequence[Sequence[float]]]:
        """Layer by layer, and there pair by pair: the nearest distances within A, within B and from A to B."""
        pairs = [
            [[fmean(layer[f"nearest_{kind}"]) for kind in KINDS[:3]] for layer in layers]
            for layers in distances.layers(scale, results)
        ]
        return [*zip(*pairs, strict=True)]

    def report(scale: Scale, results: Results) -> Report:
        counts = Counter(_pattern(map(across, found)) for found in nearest(scale, results))
        listed = ", ".join(f"{pattern} in {count}" for pattern, count in counts.items())
        finding = f"Nearest channels, layer by layer: {listed}."
        return Report(finding, distances.text(scale, results), (measured(results, lambda r: table(scale, r)),))

    def table(scale: Scale, results: Results) -> Table:
        rows: list[Row] = []
        widths = [layer["width"] for layer in distances.layers(scale, results)[0]]
        for k, (width, found) in enumerate(zip(widths, nearest(scale, results), strict=True)):
            theirs = _pattern([across(published[k])]) if scale != "quick" else ""
            known = f"{across(published[k]):.2f}" if scale != "quick" else None
            ratio = Value.of(map(across, found), paper=known)
            values = map(Value.of, zip(*found, strict=True))
            rows.append((str(k + 1), str(width), *values, ratio, _pattern(map(across, found)), theirs))
        columns = ("layer", "channels", "within A", "within B", "A→B", "A→B / within", "pattern", "paper's pattern")
        return Table("summary", "Nearest-neighbour distances", columns, tuple(rows))

    def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
        found = [[*map(across, layer)] for layer in nearest(scale, results)]
        theirs = [across(row) for row in published]
        verdicts = []
        for pattern, words in (("<", "closer than"), ("≈", "as close as"), (">", "farther than")):
            here = [k for k, ratio in enumerate(theirs) if f" {pattern} " in _pattern([ratio])]
            listed = ", ".join(f"{with_spread(found[k])} (paper {theirs[k]:.2f})" for k in here)
            numbers = ", ".join(str(k + 1) for k in here)
            where = f"layer{'s' * (len(here) > 1)} {numbers}"
            claim = f"The nearest channels of the other network are {words} those of the same one in {where}."
            if here:
                held = [f" {pattern} " in _pattern(found[k]) for k in here]
                verdicts.append(Verdict.of(claim, held, f"nearest across / within: {listed}", cases="layers"))
        return verdicts

    return Experiment(name, title, references, distances.data, distances.cells, report, claims)


def histograms(
    name: str,
    title: str,
    references: tuple[str, ...],
    distances: Distances,
) -> Experiment:
    """The distributions behind the tables. Arguments as in `full`."""

    def report(scale: Scale, results: Results) -> Report:
        figures = (
            measured(results, lambda r: figure(scale, r, "nearest", "Distance of every channel to the nearest one")),
            measured(results, lambda r: figure(scale, r, "mean", "Mean distance of every channel to all others")),
        )
        far = tails(scale, results, 0.9)
        finding = (
            f"The most isolated tenth of A's channels is at least {min(far):.1f} to {max(far):.1f} times as "
            "far from the nearest channel of B as the median channel is, depending on the layer."
        )
        return Report(finding, distances.text(scale, results), figures)

    def figure(scale: Scale, results: Results, what: str, words: str) -> Figure:
        layers = zip(*distances.layers(scale, results), strict=True)
        return Figure(what, words, tuple(_histogram(layer, what, k) for k, layer in enumerate(layers)))

    def tails(scale: Scale, results: Results, quantile: float) -> list[float]:
        """Layer by layer: a quantile of the nearest distances relative to their median, on average over the pairs."""
        layers = zip(*distances.layers(scale, results), strict=True)
        return [fmean(_tail(found["nearest_a_to_b"], quantile) for found in layer) for layer in layers]

    def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
        far, close = (tails(scale, results, quantile) for quantile in (0.9, 0.1))
        return [
            Verdict.of(
                "Most layers have unusually dissimilar channels (a tenth at 1.2 times the median distance or more).",
                [tail >= 1.2 for tail in far],
                "ninetieth percentile of the nearest distances relative to the median: "
                + ", ".join(f"{tail:.2f}" for tail in far),
                often=True,
                cases="layers",
            ),
            Verdict.of(
                "Most layers have unusually similar channels (a tenth at 0.8 times the median distance or less).",
                [tail <= 0.8 for tail in close],
                "tenth percentile relative to the median: " + ", ".join(f"{tail:.2f}" for tail in close),
                often=True,
                cases="layers",
            ),
        ]

    return Experiment(name, title, references, distances.data, distances.cells, report, claims)


def _histogram(layer: Sequence[dict[str, Any]], what: str, number: int) -> Panel:
    """The channels of a layer, of all pairs together."""
    lines = tuple(
        Line(NAMES[kind], (), tuple(distance for found in layer for distance in found[f"{what}_{kind}"]))
        for kind in KINDS[:3]
    )
    return Panel(f"layer {number + 1}", "distance", "channels", lines, histogram=True)


def _rows(layers: Layers, keep: Callable[[Sequence[float]], list[float]]) -> Rows:
    return [
        [fmean(keep(layer[f"{what}_{kind}"])) for what in ("nearest", "mean") for kind in KINDS] for layer in layers
    ]


def reduction(everyone: Rows, close: Rows) -> float:
    """By how many percent nearest distances are smaller without the most isolated channels, on average."""
    parts = [1 - b / a for x, y in zip(everyone, close, strict=True) for a, b in zip(x[:4], y[:4], strict=True)]
    return 100 * fmean(parts)


def across(found: Sequence[float]) -> float:
    """The nearest distance from A to B, relative to those within the networks: rows are within A, within B, A→B, …"""
    return found[2] / ((found[0] + found[1]) / 2)


def to_mean(row: Sequence[float]) -> float:
    """The nearest distance from A to B, relative to the mean distance from A to B."""
    return row[2] / row[6]


def _table(name: str, title: str, pairs: Sequence[Rows]) -> Table:
    columns = ("layer", *(f"{what}, {NAMES[kind]}" for what in ("nearest", "mean") for kind in KINDS))
    rows: list[Row] = []
    for number, layer in enumerate(zip(*pairs, strict=True), start=1):
        rows.append((str(number), *map(Value.of, zip(*layer, strict=True))))
    return Table(name, title, columns, tuple(rows))


RATIOS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "nearest across / within": lambda every, _: across(every),
    "nearest / mean, within A": lambda every, _: every[0] / every[4],
    "nearest / mean, A→B": lambda every, _: to_mean(every),
    "80 % / all, nearest within A": lambda every, close: close[0] / every[0],
    "80 % / all, nearest A→B": lambda every, close: close[2] / every[2],
}


def _ratios(everyone: Sequence[Rows], close: Sequence[Rows], published: tuple[Rows, Rows] | None) -> Table:
    """What does not depend on the scale of activations, beside the paper's."""
    rows: list[Row] = []
    for k, _ in enumerate(everyone[0]):
        ours = [(every[k], near[k]) for every, near in zip(everyone, close, strict=True)]
        values = []
        for ratio in RATIOS.values():
            paper = None if published is None else f"{ratio(published[0][k], published[1][k]):.2f}"
            values.append(Value.of((ratio(*pair) for pair in ours), paper=paper))
        rows.append((str(k + 1), *values))
    return Table("ratios", "Ratios, which do not depend on the scale of activations", ("layer", *RATIOS), tuple(rows))


def _pattern(ratios: Iterable[float]) -> str:
    """Whether channels are closer to the other network's than to their own, by the mean; up to 3 % counts as equal."""
    ratio = fmean(ratios)
    return "cross ≈ within" if abs(ratio - 1) < 0.03 else "cross < within" if ratio < 1 else "cross > within"


def _tail(distances: Sequence[float], quantile: float) -> float:
    """A quantile of distances, relative to their median."""
    return float(np.quantile(distances, quantile) / np.median(distances))
