"""Colours, dashes and markers of the lines of a figure: safe for the colour-blind, readable on white."""

from __future__ import annotations

from typing import Any

from .document import Figure, Line

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
BESIDE_MAP = ("#000000", "#7f7f7f", "#d55e00", "#cc79a7")  # stand out from the colours of alpha
MAP, BRIGHTEST = "viridis", 0.9  # perceptually uniform; its brightest end is hard to see on white
MARKERS = "osD^vPX"
DASHES: dict[str, Any] = {"line": "-", "dashed": (0, (5, 2)), "dotted": (0, (1, 1.4)), "points": "none"}

Strokes = dict[Line, dict[str, Any]]


def strokes(figure: Figure) -> Strokes:
    """What every line is drawn with, as matplotlib's keyword arguments; a label looks the same in all panels."""
    lines = [line for panel in figure.panels for line in panel.lines]
    palette = PALETTE if all(line.colour is None for line in lines) else BESIDE_MAP
    labels = list(dict.fromkeys(line.label for line in lines if line.colour is None))
    dotted = list(dict.fromkeys(line.label for line in lines if line.style == "points"))
    look: Strokes = {}
    for line in lines:
        colour = palette[labels.index(line.label) % len(palette)] if line.colour is None else _on_map(line.colour)
        options: dict[str, Any] = {"color": colour, "linestyle": DASHES[line.style]}
        if line.style == "line":
            options["marker"] = "o"
        elif line.style == "points":
            options |= {"marker": MARKERS[dotted.index(line.label) % len(MARKERS)], "markersize": 6.5, "zorder": 3}
        else:
            options["zorder"] = 1.9  # behind what was measured
        look[line] = options
    return look


def _on_map(place: float) -> str:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps[MAP](BRIGHTEST * place))
