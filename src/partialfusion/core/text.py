"""Plain text: tables, and names and mixes as they appear in messages."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, align: str = "") -> str:
    """A table with columns as wide as their widest cell; `align` gives < or > per column, < for the rest."""
    cells = [[str(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    align = align.ljust(len(header), "<")
    lines = ["  ".join(f"{c:{a}{w}}" for c, a, w in zip(row, align, widths, strict=True)) for row in cells]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(line.rstrip() for line in lines)


def shorten(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and the number of the others."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, +{len(names) - most}"


def mix_text(mix: Sequence[float]) -> str:
    """The shares of a mix, as 0.5 : 0.5."""
    return " : ".join(f"{round(share, 3):g}" for share in mix)
