"""An experiment: cells, and the chapter that reports their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..cell import Cell
from ..cells import Train, TrainText
from ..report import Chapter, Figure, Table
from ..text_recipes import TextRecipe
from ..trained import AnyRecipe
from .settings import Scale, tested, tested_bytes

Results = Callable[[Cell], dict[str, Any]]  # the stored result of a cell
Part = Table | Figure


@dataclass(frozen=True)
class Report:
    """The report of an experiment: a sentence for the index, the text and the parts of its chapter."""

    finding: str
    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper, or one of our own.

    Attributes:
        name: the name in `study list`; the paper's label where it has one.
        title: a title for people.
        labels: labels of the paper's tables and figures that it reproduces.
        data: the data sets, for people.
        cells: scale → the cells, all independent of each other.
        report: scale and results of those cells → the report.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    data: str
    cells: Callable[[Scale], Sequence[Cell]]
    report: Callable[[Scale, Results], Report]

    def trainings(self, scale: Scale) -> list[Train | TrainText]:
        """The networks that the cells need, without repetition; they are trained before the cells run."""
        needed: dict[AnyRecipe, None] = {}
        for cell in self.cells(scale):
            needed |= dict.fromkeys(getattr(cell, "needs", ()))
        return [
            TrainText(recipe, tested_bytes(scale)) if isinstance(recipe, TextRecipe) else Train(recipe, tested(scale))
            for recipe in needed
        ]

    def chapter(self, scale: Scale, results: Results) -> tuple[str, Chapter]:
        """The finding, and the chapter."""
        found = self.report(scale, results)
        return found.finding, Chapter(self.name, self.title, self.labels, found.text, found.parts)
