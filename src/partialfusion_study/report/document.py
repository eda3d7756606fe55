"""The contents of a page of results as plain values: numbers, tables, lines, panels, figures and chapters.

Nothing here depends on how it is printed or drawn. Values that cannot be printed are refused when they are constructed,
not when the page is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from statistics import fmean, stdev
from typing import Literal

from partialfusion.errors import OptionError

from .verdict import Verdict

INDEX = "README"  # the page that lists the chapters

Style = Literal["line", "dashed", "dotted", "points"]
STYLES: tuple[Style, ...] = ("line", "dashed", "dotted", "points")


@dataclass(frozen=True)
class Value:
    """A number measured once per sample (a pair or a network), and the paper's number for it if there is one.

    `std` is the standard deviation over the samples; it is not printed for one. `paper` is what the paper prints, with
    its digits: "86.9", "0.90" or "97".
    """

    mean: float
    std: float | None
    count: int
    paper: str | None = None
    digits: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise OptionError(
                f"a value needs at least one sample, but count is {self.count}; use None for a missing value"
            )
        if self.std is not None and self.std < 0:
            raise OptionError(f"the standard deviation of a value is {self.std}, but cannot be negative")
        if self.digits < 0:
            raise OptionError(f"the number of digits of a value is {self.digits}; use 0 or more")
        try:
            known = self.paper is None or Decimal(self.paper).is_finite()
        except InvalidOperation:
            known = False
        if not known:
            raise OptionError(f"the paper's number is {self.paper!r}; give it as it is printed, such as '0.90'")

    @classmethod
    def of(cls, samples: Iterable[float], *, paper: str | None = None, digits: int = 2) -> Value:
        """Mean and sample standard deviation of one number per sample."""
        numbers = [float(s) for s in samples]
        if not numbers:
            raise OptionError("a value has no samples; give at least one number, or use None for a missing value")
        return cls(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers), paper, digits)


Item = str | Value | None  # in a table: text, a number, or None where nothing was measured
Row = tuple[Item, ...]


@dataclass(frozen=True)
class Table:
    """Rows of text and values. None is printed as a dash, "" as nothing; text may contain Markdown.

    `measured` says how many runs, networks and images the numbers come from, and `over` of what those after ± are the
    deviation.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    measured: str = ""
    over: Literal["pairs", "networks"] = "pairs"

    def __post_init__(self) -> None:
        _check_name("table", self.name)
        if not self.columns:
            raise OptionError(f"table {self.name!r} has no columns; name at least one")
        for k, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise OptionError(
                    f"row {k} of table {self.name!r} has {len(row)} cells for {len(self.columns)} columns; "
                    "fill the missing ones with None"
                )


@dataclass(frozen=True)
class Line:
    """Points (x, y) under one label, or the raw values y of a histogram, where x stays empty.

    A y that is not finite is a gap. `spread` is half the height of a band around y. `colour` is a position from 0 to 1
    on the colour map of alpha; None means the next colour of the palette, the same for the same label in every panel.
    A dashed or dotted line with a single point is a level, which crosses the whole panel.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] | None = None
    style: Style = "line"
    colour: float | None = None

    def __post_init__(self) -> None:
        if self.x and len(self.x) != len(self.y):
            raise OptionError(
                f"line {self.label!r} has {len(self.x)} x for {len(self.y)} y; give one of each per point"
            )
        if self.spread is not None and len(self.spread) != len(self.y):
            raise OptionError(
                f"line {self.label!r} has {len(self.spread)} spreads for {len(self.y)} y; give one per point, or None"
            )
        if self.style not in STYLES:
            raise OptionError(f"line {self.label!r} has the style {self.style!r}; choose one of {', '.join(STYLES)}")
        if self.colour is not None and not 0 <= self.colour <= 1:
            raise OptionError(f"line {self.label!r} has the colour {self.colour}; give 0 to 1, or None for the palette")

    @classmethod
    def of(
        cls,
        label: str,
        x: Sequence[float],
        samples: Iterable[Sequence[float]],
        *,
        style: Style = "line",
        colour: float | None = None,
    ) -> Line:
        """Means of one number per sample and point, with a band of one standard deviation where there are several."""
        values = [Value.of(point) for point in samples]
        several = any(value.std is not None for value in values)
        spread = tuple(value.std or 0.0 for value in values) if several else None
        return cls(label, tuple(x), tuple(value.mean for value in values), spread, style, colour)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(map(math.isfinite, self.y))


@dataclass(frozen=True)
class Panel:
    """One pair of axes. With `histogram`, the lines' y are raw values, counted in the same bins for all lines."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    histogram: bool = False
    log_x: bool = False

    def __post_init__(self) -> None:
        if self.histogram and self.log_x:
            raise OptionError(f"panel {self.title!r} is a histogram on a logarithmic axis; take the logarithm first")
        for line in self.lines:
            if not self.histogram and len(line.x) != len(line.y):
                raise OptionError(
                    f"line {line.label!r} of panel {self.title!r} has 0 x for {len(line.y)} y; give one of each "
                    "for every point, or make the panel a histogram"
                )
            if self.log_x and any(x <= 0 for x in line.x):
                raise OptionError(
                    f"line {line.label!r} of panel {self.title!r} has x = {min(line.x)} on a logarithmic axis; "
                    "leave such points out or set log_x=False"
                )


@dataclass(frozen=True)
class Figure:
    """Panels in rows of `columns` (three by default), with one legend.

    Panels whose y axes all have the same label have a common y axis; histograms whose x axes all have the same label
    have a common x axis and common bins. Give panels of different scales different labels. `measured` says how many
    runs, networks and images the lines come from.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    note: str = ""
    columns: int | None = None
    measured: str = ""

    def __post_init__(self) -> None:
        _check_name("figure", self.name)
        if not self.panels:
            raise OptionError(f"figure {self.name!r} has no panels; give at least one")
        if self.columns is not None and self.columns < 1:
            raise OptionError(f"figure {self.name!r} has {self.columns} columns; give 1 or more")


@dataclass(frozen=True)
class Chapter:
    """The page of one experiment: what it reproduces of the paper ("Figure 5"), its setting in words, tables and
    figures in order, and the verdicts on the paper's claims."""

    name: str
    title: str
    references: tuple[str, ...]
    text: str
    parts: tuple[Table | Figure, ...]
    verdicts: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:
        _check_page(self.name)
        names = [part.name for part in self.parts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise OptionError(f"chapter {self.name!r} has two parts named {twice[0]!r}; rename one")


@dataclass(frozen=True)
class Entry:
    """A chapter's line in the index: its page, what it reproduces of the paper, its finding and its verdicts."""

    name: str
    title: str
    references: tuple[str, ...]
    finding: str
    verdicts: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:
        _check_page(self.name)


def check_distinct(kind: str, names: Sequence[str]) -> None:
    """Raise where two names would be written to the same file."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise OptionError(f"two {kind} would be written to the same file {name!r}; rename one")
        seen.add(name.lower())


def _check_page(name: str) -> None:
    _check_name("chapter", name)
    if name.upper() == INDEX:
        raise OptionError(f"a chapter cannot be named {name!r}, the name of the index; rename it")


def _check_name(kind: str, name: str) -> None:
    """Names become file names and links."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise OptionError(f"a {kind} cannot be named {name!r}; use letters, digits, '-', '_' and '.'")
