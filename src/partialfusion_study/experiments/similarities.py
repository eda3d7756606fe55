"""Distances between channels, within a network and across two, as tables and histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from partialfusion.core.literals import Site

from ..cell import Cell
from ..cells import Similarity
from ..recipes import Pair
from ..report import Figure, Line, Panel, Row, Table, Value
from .experiment import Experiment, Report, Results
from .settings import Scale, setting

KINDS = ("within_a", "within_b", "a_to_b", "b_to_a")
NAMES = {"within_a": "within A", "within_b": "within B", "a_to_b": "A→B", "b_to_a": "B→A"}
NEAR = 0.8  # the fraction of channels that count as least isolated
Rows = Sequence[Sequence[float]]


def cell(pair: Pair, site: Site, scale: Scale) -> Similarity:
    return Similarity(pair, 100 if scale == "quick" else 1000, site)


def nearer(values: Sequence[float]) -> list[float]:
    """The smallest distances, without those of the most isolated channels."""
    return sorted(values)[: round(NEAR * len(values))]


def full(
    name: str,
    title: str,
    data: str,
    pairs: Callable[[Scale], list[Pair]],
    site: Site,
    published: tuple[Rows, Rows, Rows],
) -> Experiment:
    """The long table: nearest and mean distances of all channels, of the least isolated ones, and the difference.

    Args:
        name: name of the experiment.
        title: title of the experiment.
        data: the data set.
        pairs: scale → pairs, of which the first is measured.
        site: where activations are taken.
        published: the paper's rows of eight numbers: of all channels, of the least isolated ones, and the difference.
    """

    def cells(scale: Scale) -> list[Cell]:
        return [cell(pairs(scale)[0], site, scale)]

    def report(scale: Scale, results: Results) -> Report:
        layers = results(cell(pairs(scale)[0], site, scale))["layers"]
        everyone, close = (_rows(layers, keep) for keep in (list, nearer))
        apart = [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(everyone, close, strict=True)]
        parts = tuple(
            _table(part, words, rows, paper if scale != "quick" else None)
            for part, words, rows, paper in (
                ("all", "All channels", everyone, published[0]),
                ("near", "The 80 % least isolated channels", close, published[1]),
                ("difference", "Difference", apart, published[2]),
            )
        )
        smaller = fmean(a / b for x, y in zip(apart, everyone, strict=True) for a, b in zip(x[:4], y[:4], strict=True))
        finding = (
            f"Without the 20 % most isolated channels, nearest distances are {100 * smaller:.0f} % smaller on average."
        )
        return Report(finding, _text(scale, pairs(scale), site), parts)

    return Experiment(name, title, (f"tab:{name}",), data, cells, report)


def summary(
    name: str, title: str, data: str, pairs: Callable[[Scale], list[Pair]], site: Site, published: Rows
) -> Experiment:
    """The short table: the nearest distances within and across, and which are smaller. Arguments as in `full`."""

    def cells(scale: Scale) -> list[Cell]:
        return [cell(pairs(scale)[0], site, scale)]

    def report(scale: Scale, results: Results) -> Report:
        layers = results(cell(pairs(scale)[0], site, scale))["layers"]
        rows: list[Row] = []
        patterns: list[str] = []
        for k, layer in enumerate(layers):
            found = [fmean(layer[f"nearest_{kind}"]) for kind in KINDS[:3]]
            paper: Sequence[float | None] = published[k] if scale != "quick" else (None,) * 3
            patterns.append(_pattern(found))
            values = [Value.of([v], paper=p) for v, p in zip(found, paper, strict=True)]
            theirs = _pattern(published[k]) if scale != "quick" else ""
            rows.append((str(k + 1), str(layer["width"]), *values, patterns[-1], theirs))
        columns = ("layer", "channels", "within A", "within B", "A→B", "pattern", "paper's pattern")
        table = Table("summary", "Nearest-neighbour distances", columns, tuple(rows))
        return Report(f"Layer by layer: {'; '.join(patterns)}.", _text(scale, pairs(scale), site), (table,))

    return Experiment(name, title, (f"tab:{name}",), data, cells, report)


def histograms(name: str, title: str, data: str, pairs: Callable[[Scale], list[Pair]], site: Site) -> Experiment:
    """The distributions behind the tables. Arguments as in `full`."""

    def cells(scale: Scale) -> list[Cell]:
        return [cell(pairs(scale)[0], site, scale)]

    def report(scale: Scale, results: Results) -> Report:
        layers = results(cell(pairs(scale)[0], site, scale))["layers"]
        figures = tuple(
            Figure(what, words, tuple(_histogram(layer, what, k) for k, layer in enumerate(layers)))
            for what, words in (
                ("nearest", "Distance of every channel to the nearest one"),
                ("mean", "Mean distance of every channel to all others"),
            )
        )
        spreads = [_tail(layer["nearest_a_to_b"]) for layer in layers]
        finding = (
            f"Depending on the layer, the most isolated tenth of A's channels is at least {min(spreads):.1f} to "
            f"{max(spreads):.1f} times as far from the nearest channel of B as the median channel is."
        )
        return Report(finding, _text(scale, pairs(scale), site), figures)

    return Experiment(name, title, (f"fig:{name}",), data, cells, report)


def _histogram(layer: dict[str, Any], what: str, number: int) -> Panel:
    lines = tuple(Line(NAMES[kind], (), tuple(layer[f"{what}_{kind}"])) for kind in KINDS[:3])
    return Panel(f"layer {number + 1}", "distance", "channels", lines, histogram=True)


def _rows(layers: Sequence[dict[str, Any]], keep: Callable[[Sequence[float]], list[float]]) -> list[list[float]]:
    return [
        [fmean(keep(layer[f"{what}_{kind}"])) for what in ("nearest", "mean") for kind in KINDS] for layer in layers
    ]


def _table(name: str, title: str, rows: Rows, paper: Rows | None) -> Table:
    columns = ("layer", *(f"{what}, {NAMES[kind]}" for what in ("nearest", "mean") for kind in KINDS))
    filled: list[Row] = []
    for k, row in enumerate(rows):
        published = paper[k] if paper else [None] * len(row)
        filled.append((str(k + 1), *(Value.of([v], paper=p) for v, p in zip(row, published, strict=True))))
    return Table(name, title, columns, tuple(filled))


def _pattern(found: Sequence[float]) -> str:
    """Whether channels are closer to the other network's than to their own; up to 3 % counts as equal."""
    within = (found[0] + found[1]) / 2
    ratio = found[2] / within
    return "cross ≈ within" if abs(ratio - 1) < 0.03 else "cross < within" if ratio < 1 else "cross > within"


def _text(scale: Scale, pairs: Sequence[Pair], site: Site) -> str:
    where = "before" if site == "pre" else "after"
    return (
        f"{setting(scale, pairs[:1])} Distances are Euclidean, between activation vectors on 1,000 training images, "
        f"taken {where} the activation function (and pooling, where there is any). Distances of convolution channels "
        "are divided by the square root of the number of positions; the paper does not state its scale. One pair is "
        "measured, as in the paper."
    )


def _tail(distances: Sequence[float]) -> float:
    """The ninetieth percentile of distances, relative to their median; channels that never fire are at zero."""
    return float(np.quantile(distances, 0.9) / max(np.median(distances), 1e-9))
