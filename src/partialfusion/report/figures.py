"""Figures as PNG. matplotlib is imported when the first figure is drawn, and never through pyplot's global state."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from .document import Figure, Line, Panel
from .strokes import Strokes, strokes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

DPI = 150
WIDTHS = {1: 6.4, 2: 8.8, 3: 10.8}  # inches by columns of panels; on a page the text shrinks with the width
WIDEST = 12.0
PANEL_RATIO = 0.82  # height to width
INK, GRID = "#333333", "#e4e4e4"
FONT = 10.5
BINS = 30
FEW = 8  # values that each get a tick

STYLE: Any = {
    "font.size": FONT,
    "axes.titlesize": FONT + 0.5,
    "axes.labelsize": FONT,
    "legend.fontsize": FONT - 0.5,
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.6,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "figure.dpi": DPI,
}


def draw(figure: Figure) -> Canvas:
    """The figure on a canvas of matplotlib's, for those who want to look closer or add to it."""
    with _matplotlib():
        return _draw(figure)


def png(figure: Figure) -> bytes:
    """The figure as a PNG of at most 256 colours; the same figure gives the same bytes."""
    with _matplotlib():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from PIL import Image

        canvas = FigureCanvasAgg(_draw(figure))
        canvas.draw()
        size = canvas.get_width_height()
        picture = Image.frombuffer("RGBA", size, bytes(canvas.buffer_rgba())).convert("RGB")
    file = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


@contextmanager
def _matplotlib() -> Iterator[None]:
    """matplotlib's own defaults and this file's style, whatever the user has set, and the user's again afterwards."""
    try:
        import matplotlib
    except ImportError as error:
        raise OptionError("figures are drawn by matplotlib: pip install 'partialfusion[study]'") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with matplotlib.rc_context(STYLE):
            yield


def _draw(figure: Figure) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    columns = figure.columns or min(len(figure.panels), 3)
    columns = min(columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    width = WIDTHS.get(columns, WIDEST)
    height = rows * PANEL_RATIO * width / columns
    canvas = Canvas(figsize=(width, height), layout="constrained")
    shared = len({panel.y_label for panel in figure.panels}) == 1
    axes = canvas.subplots(rows, columns, sharey=shared, squeeze=False).ravel()
    look = strokes(figure)
    for k, (ax, panel) in enumerate(zip(axes, figure.panels, strict=False)):
        _panel(ax, panel, look)
        ax.set_title(textwrap.fill(panel.title, int(width / columns * 12)))
        ax.set_xlabel(panel.x_label)
        if not shared or k % columns == 0:
            ax.set_ylabel(panel.y_label)
    for ax in axes[len(figure.panels) :]:
        ax.remove()
    _legend(canvas, figure, look)
    return canvas


def _legend(canvas: Canvas, figure: Figure, look: Strokes) -> None:
    handles: dict[str, Any] = {}
    for ax in canvas.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        canvas.legend(list(handles.values()), list(handles), loc="outside right center", frameon=False)


def _panel(ax: Axes, panel: Panel, look: Strokes) -> None:
    lines = [line for line in panel.lines if not line.is_blank]
    if panel.histogram:
        _histogram(ax, lines, look)
    else:
        for line in lines:
            _line(ax, line, look)
    if panel.log_x:
        ax.set_xscale("log")
    if not lines:
        ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center", va="center")


def _line(ax: Axes, line: Line, look: Strokes) -> None:
    import numpy as np

    x, y = np.array(line.x, dtype=float), np.array(line.y, dtype=float)
    y[~np.isfinite(y)] = np.nan
    options = look[line]
    label = line.label or "_"
    if line.style in ("dashed", "dotted") and len(y) == 1:
        ax.axhline(y[0], label=label, **options)
        return
    ax.plot(x, y, label=label, **options)
    if line.spread is not None:
        spread = np.array(line.spread, dtype=float)
        ax.fill_between(x, y - spread, y + spread, color=options["color"], alpha=0.15, linewidth=0)


def _histogram(ax: Axes, lines: list[Line], look: Strokes) -> None:
    import numpy as np

    values = [np.array([v for v in line.y if math.isfinite(v)]) for line in lines]
    if not values:
        return
    edges = np.histogram_bin_edges(np.concatenate(values), bins=BINS)
    for line, own in zip(lines, values, strict=True):
        counts, _ = np.histogram(own, edges)
        colour = look[line]["color"]
        ax.stairs(counts, edges, fill=True, color=colour, alpha=0.25)
        ax.stairs(counts, edges, color=colour, linewidth=1.4, label=line.label or "_")
