"""What a table or a figure was measured on: the runs it reads, their networks and their images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from ..cell import Cell
from ..cells import Train, TrainText
from ..report import Figure, Table
from ..text_recipes import TextPair

Results = Callable[[Cell], dict[str, Any]]  # the stored result of a cell
TEST_IMAGES = 10_000  # of MNIST and of CIFAR-10
TEXT = "bytes of test text in each domain", "passages as data"

Part = TypeVar("Part", Table, Figure)


def measured(results: Results, build: Callable[[Results], Part]) -> Part:
    """A table or figure, with the number of runs, pairs or networks, and images that its own numbers come from.

    Args:
        results: the stored results.
        build: makes the table or figure from results; what it reads is counted.
    """
    cells: dict[Cell, None] = {}

    def reading(cell: Cell) -> dict[str, Any]:
        cells[cell] = None
        return results(cell)

    part = build(reading)
    if isinstance(part, Table):
        return replace(part, measured=_basis(cells), over="pairs" if _pairs(cells) else "networks")
    return replace(part, measured=_basis(cells))


def _basis(cells: Iterable[Cell]) -> str:
    """A sentence: how many runs, on how many pairs or networks, with how many images; trainings are no runs."""
    cells = [cell for cell in cells if not isinstance(cell, Train | TrainText)]
    pairs = len(_pairs(cells))
    alone = len({model for cell in cells for name in ("model", "recipe") if (model := getattr(cell, name, None))})
    data = _numbers(images for cell in cells if (images := getattr(getattr(cell, "config", None), "images", 0)))
    tuned = _numbers(images for cell in cells if (images := getattr(cell, "images", 0)))
    tested = _numbers(TEST_IMAGES if cell.tested is None else cell.tested for cell in cells if hasattr(cell, "tested"))
    seen, learnt = ("test images", "images as data") if not any(map(_reads_text, cells)) else TEXT
    counted = [
        _many(pairs, "pair of networks", "pairs of networks") if pairs else "",
        _many(alone, "network", "networks") if alone else "",
        f"{tested} {seen}" if tested else "",
        f"{data} {learnt}" if data else "",
        f"{tuned} training images" if tuned else "",
    ]
    listed = ", ".join(part for part in counted if part)
    return f"From {_many(len(cells), 'run', 'runs')}{': ' * bool(listed)}{listed}."


def _pairs(cells: Iterable[Cell]) -> set[object]:
    return {pair for cell in cells if (pair := getattr(cell, "pair", None)) is not None}


def _reads_text(cell: Cell) -> bool:
    return isinstance(getattr(cell, "pair", None), TextPair)


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def _numbers(found: Iterable[int]) -> str:
    return " or ".join(f"{number:,}" for number in sorted(set(found)))
