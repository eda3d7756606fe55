"""Colours, dashes and markers of the lines of a figure: distinguishable for the colour-blind, readable on white."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .document import Figure, Line

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
BESIDE_MAP = ("#000000", "#7f7f7f", "#d55e00", "#cc79a7")  # stand out from the colours of alpha
MAP, BRIGHTEST = "viridis", 0.9  # perceptually uniform; its brightest end is hard to see on white
MARKERS = "osD^vPX"
DASHES: dict[str, Any] = {"line": "-", "dashed": (0, (5, 2)), "dotted": (0, (1, 1.4)), "points": "none"}


@dataclass(frozen=True)
class LineStyles:
    """The styles of the lines of a figure; a label has the same style in all panels."""

    palette: tuple[str, ...]
    coloured: tuple[str, ...]  # labels with a colour of the palette
    dotted: tuple[str, ...]  # labels of points

    @classmethod
    def of(cls, figure: Figure) -> LineStyles:
        """Colours and markers in the order in which labels first occur."""
        lines = [line for panel in figure.panels for line in panel.lines]
        palette = PALETTE if all(line.colour is None for line in lines) else BESIDE_MAP
        coloured = dict.fromkeys(line.label for line in lines if line.colour is None)
        dotted = dict.fromkeys(line.label for line in lines if line.style == "points")
        return cls(palette, tuple(coloured), tuple(dotted))

    def __getitem__(self, line: Line) -> dict[str, Any]:
        """Keyword arguments with which matplotlib draws the line."""
        if line.colour is None:
            colour = self.palette[self.coloured.index(line.label) % len(self.palette)]
        else:
            colour = _on_map(line.colour)
        options: dict[str, Any] = {"color": colour, "linestyle": DASHES[line.style]}
        if line.style == "line":
            return options | {"marker": "o"}
        if line.style == "points":
            marker = MARKERS[self.dotted.index(line.label) % len(MARKERS)]
            return options | {"marker": marker, "markersize": 6.5, "zorder": 3}
        return options | {"zorder": 1.9}  # behind what was measured


def _on_map(place: float) -> str:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps[MAP](BRIGHTEST * place))
