"""Colours, dashes and markers of the lines of a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .document import Figure, Line

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # safe for the colour-blind
BESIDE_MAP = ("#000000", "#7f7f7f", "#009e73", "#56b4e9")
MARKERS = "osD^vPX"
DASHES = {"line": "-", "dashed": (0, (5, 2)), "dotted": (0, (1, 1.5)), "points": "none"}

Strokes = Mapping[Line, Mapping[str, Any]]


def strokes(figure: Figure) -> dict[Line, dict[str, Any]]:
    """What to draw every line of a figure with, as matplotlib's keyword arguments."""
    from matplotlib import colormaps

    lines = [line for panel in figure.panels for line in panel.lines]
    palette = PALETTE if all(line.colour is None for line in lines) else BESIDE_MAP
    labels = list(dict.fromkeys(line.label for line in lines if line.colour is None))
    dots = list(dict.fromkeys(line.label for line in lines if line.style == "points"))
    look = {}
    for line in lines:
        if line.colour is None:
            colour: Any = palette[labels.index(line.label) % len(palette)]
        else:
            colour = colormaps["plasma"](0.86 * line.colour)
        options: dict[str, Any] = {"color": colour, "linestyle": DASHES[line.style]}
        if line.style == "line":
            options |= {"marker": "o"}
        elif line.style == "points":
            options |= {"marker": MARKERS[dots.index(line.label) % len(MARKERS)], "markersize": 6.5}
        look[line] = options
    return look
