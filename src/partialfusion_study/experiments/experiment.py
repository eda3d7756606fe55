"""An experiment: cells, and the chapter that reports their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..cell import Cell
from ..cells import Train, TrainText
from ..report import Chapter, Figure, Table, Verdict
from ..text_recipes import TextRecipe
from ..trained import AnyRecipe
from .runs import Results as Results
from .settings import Scale, tested, tested_bytes

Part = Table | Figure
Claims = Callable[[Scale, Results], Sequence[Verdict]]


def no_claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    """For experiments that the paper says nothing about."""
    return ()


@dataclass(frozen=True)
class Report:
    """The report of an experiment: a sentence or two for the index, the text and the parts of its chapter.

    Every part is made by `measured`, so that it says what it comes from.
    """

    finding: str
    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper, or one of our own.

    Attributes:
        name: the name in `study list`; the paper's label where it has one.
        title: a title for people.
        references: the paper's tables and figures that it reproduces, by number.
        data: the data sets, for people.
        cells: scale → the cells, all independent of each other.
        report: scale and results of those cells → the report.
        claims: scale and results of those cells → the verdicts on the paper's claims; not asked at the quick scale.
    """

    name: str
    title: str
    references: tuple[str, ...]
    data: str
    cells: Callable[[Scale], Sequence[Cell]]
    report: Callable[[Scale, Results], Report]
    claims: Claims = no_claims

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
        verdicts = tuple(self.claims(scale, results)) if scale != "quick" else ()
        return found.finding, Chapter(self.name, self.title, self.references, found.text, found.parts, verdicts)
