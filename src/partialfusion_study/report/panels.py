"""One panel of a figure on matplotlib axes: lines with bands, points, levels, histograms, and readable ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .document import Line, Panel
from .line_styles import LineStyles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

BINS = 30
FILLED_MOST = 3  # histograms in a panel; more are drawn as outlines
FEW = 8  # values on a logarithmic axis up to which each gets a tick
CLOSEST = 0.09  # fraction of the axis between two such ticks
LARGE = 1e4  # numbers printed as 20k, 1.5M


def draw_panel(ax: Axes, panel: Panel, look: LineStyles, edges: Floats | None = None) -> None:
    """Draw the panel's lines; `edges` are the bins of its histogram where the figure has common ones."""
    lines = [line for line in panel.lines if not line.is_blank]
    if not lines:
        ax.grid(False)
        ax.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
        ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center", va="center", color="#7f7f7f")
        return
    if panel.histogram:
        _histogram(ax, lines, look, _edges(lines) if edges is None else edges)
    else:
        for line in lines:
            _line(ax, line, look[line])
    if panel.log_x:
        _log_ticks(ax, sorted({x for line in lines if not _is_level(line) for x in line.x}))
    _short_numbers(ax)


def shared_edges(panels: Sequence[Panel]) -> Floats | None:
    """Bins for the values of all panels; None where not all are histograms, or none has a value."""
    lines = [line for panel in panels for line in panel.lines if not line.is_blank]
    return _edges(lines) if lines and all(panel.histogram for panel in panels) else None


def _is_level(line: Line) -> bool:
    return line.style in ("dashed", "dotted") and len(line.y) == 1


def _line(ax: Axes, line: Line, options: dict[str, Any]) -> None:
    label = line.label or "_"  # matplotlib omits such a label from the legend
    if _is_level(line):
        ax.axhline(line.y[0], label=label, **options)
        return
    x, y = np.array(line.x, dtype=float), np.array(line.y, dtype=float)
    y[~np.isfinite(y)] = np.nan
    ax.plot(x, y, label=label, **options)
    if line.spread is not None:
        spread = np.array(line.spread, dtype=float)
        ax.fill_between(x, y - spread, y + spread, color=options["color"], alpha=0.14, linewidth=0)


def _histogram(ax: Axes, lines: Sequence[Line], look: LineStyles, edges: Floats) -> None:
    from matplotlib.ticker import MaxNLocator

    if (edges % 1 == 0.5).all():  # one bin for each number
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    for line in lines:
        counts, _ = np.histogram(_finite(line), edges)
        options = look[line]
        if len(lines) <= FILLED_MOST:
            ax.stairs(counts, edges, fill=True, color=options["color"], alpha=0.22)
        dashes = "-" if line.style == "points" else options["linestyle"]
        ax.stairs(counts, edges, color=options["color"], linestyle=dashes, linewidth=1.3, label=line.label or "_")


def _edges(lines: Sequence[Line]) -> Floats:
    """Thirty equal bins, or one for each number where the values are few integers."""
    values = np.concatenate([_finite(line) for line in lines])
    low, high = values.min(), values.max()
    if high - low < 2 * BINS and (values == np.round(values)).all():
        return np.arange(low, high + 2) - 0.5
    return np.histogram_bin_edges(values, bins=BINS)


def _finite(line: Line) -> Floats:
    values = np.array(line.y, dtype=float)
    return values[np.isfinite(values)]


def _log_ticks(ax: Axes, places: Sequence[float]) -> None:
    """Ticks at the points themselves where they are few and well separated, else at 1, 2, 5, 10, …"""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log")
    logs = [math.log(x) for x in places]
    gaps = [b - a for a, b in pairwise(logs)]
    apart = len(places) <= FEW and (not gaps or min(gaps) >= CLOSEST * sum(gaps))
    ax.xaxis.set_major_locator(FixedLocator(list(places)) if apart else LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(FuncFormatter(short_number))
    ax.xaxis.set_minor_locator(NullLocator())


def _short_numbers(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    for axis, interval in ((ax.xaxis, ax.dataLim.intervalx), (ax.yaxis, ax.dataLim.intervaly)):
        if np.isfinite(interval).all() and np.abs(interval).max() >= LARGE:
            axis.set_major_formatter(FuncFormatter(short_number))


def short_number(number: float, _: object = None) -> str:
    """1500000 → 1.5M, 20000 → 20k, 0.25 → 0.25."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= max(unit, LARGE):
            return f"{number / unit:g}{letter}".replace("-", "−")
    return f"{number:g}".replace("-", "−")
