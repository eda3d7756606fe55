"""Figures as PNG. matplotlib is imported when the first figure is drawn, without the global state of pyplot."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partialfusion.errors import OptionError

from .document import Figure
from .line_styles import LineStyles
from .panels import draw_panel, shared_edges

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

DPI = 150
WIDTHS = {1: 6.6, 2: 9.0, 3: 10.8}  # inches by number of columns; on a page the letters shrink with the width
WIDEST = 12.0
COLUMNS = 3  # unless the figure has another number
FONT = 10.5  # points
LETTER = 0.52 * FONT / 72  # inches, average width of a letter
SHORT = 14  # letters of the longest label with which a legend fits beside the panels
INK, GRID = "#333333", "#e4e4e4"

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
    "text.parse_math": False,  # a dollar sign in a label is a dollar sign
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
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.06,
}


def draw(figure: Figure) -> Canvas:
    """The figure on a matplotlib canvas, to inspect it or add to it."""
    with _matplotlib():
        return _draw(figure)


def png(figure: Figure) -> bytes:
    """The figure as a PNG with at most 256 colours; the same figure gives the same bytes."""
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
    """matplotlib's defaults and the style of this file instead of the user's settings, which are restored later."""
    try:
        import matplotlib
    except ImportError as error:
        raise OptionError("drawing figures needs matplotlib: pip install 'partialfusion[study]'") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with matplotlib.rc_context(STYLE):
            yield


@dataclass(frozen=True)
class Layout:
    """Rows and columns of panels, place and columns of the legend, size of the figure and of a panel in inches."""

    rows: int
    columns: int
    below: bool
    legend_columns: int
    width: float
    height: float
    panel_width: float
    panel_height: float


def layout(figure: Figure) -> Layout:
    """The layout of a figure: short labels are in a column beside the panels, long ones in rows below them."""
    columns = min(figure.columns or COLUMNS, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    width = WIDTHS.get(columns, WIDEST)
    labels = {line.label for panel in figure.panels for line in panel.lines if line.label and not line.is_blank}
    longest = max(map(len, labels), default=0)
    below = longest > SHORT
    beside = 0.0 if below or not labels else 0.7 + longest * LETTER
    panel_width = (width - beside) / columns - 0.3
    panel_height = min(0.8 * panel_width, 2.8)
    height = rows * (panel_height + 0.75)
    legend_columns = 1
    if below:
        most = max(1, int((width - 0.3) / (0.65 + longest * LETTER)))
        legend_rows = math.ceil(len(labels) / most)
        legend_columns = math.ceil(len(labels) / legend_rows)  # rows of about equal length
        height += 0.15 + 0.24 * legend_rows
    else:
        height = max(height, 0.4 + 0.24 * len(labels))
    return Layout(rows, columns, below, legend_columns, width, height, panel_width, panel_height)


def _draw(figure: Figure) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    plan = layout(figure)
    canvas = Canvas(figsize=(plan.width, plan.height), layout="constrained")
    alike_x, alike_y = (len({getattr(p, name) for p in figure.panels}) == 1 for name in ("x_label", "y_label"))
    edges = shared_edges(figure.panels) if alike_x else None
    axes = canvas.subplots(plan.rows, plan.columns, sharex=edges is not None, sharey=alike_y, squeeze=False).ravel()
    look = LineStyles.of(figure)
    for k, (ax, panel) in enumerate(zip(axes, figure.panels, strict=False)):
        ax.set_title(_wrapped(panel.title, plan.panel_width))
        if not alike_x or k + plan.columns >= len(figure.panels):  # nothing below it
            ax.set_xlabel(_wrapped(panel.x_label, plan.panel_width))
            ax.tick_params(labelbottom=True)
        if not alike_y or k % plan.columns == 0:
            ax.set_ylabel(_wrapped(panel.y_label, plan.panel_height))
        draw_panel(ax, panel, look, edges)
    for ax in axes[len(figure.panels) :]:
        ax.remove()
    _legend(canvas, plan)
    return canvas


def _wrapped(text: str, inches: float) -> str:
    """The text wrapped so that it does not run into its neighbours."""
    return textwrap.fill(text, int(inches / LETTER))


def _legend(canvas: Canvas, plan: Layout) -> None:
    """One entry for each label, however many panels it occurs in."""
    handles: dict[str, Any] = {}
    for ax in canvas.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        canvas.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center" if plan.below else "outside right center",
            ncols=plan.legend_columns,
            frameon=False,
            handlelength=2.4,
        )
