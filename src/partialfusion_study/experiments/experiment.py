"""An experiment: a grid of cells, and the chapter that is written of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..cell import Cell
from ..cells import Train
from ..recipes import Training
from ..report import Chapter, Figure, Table
from .settings import Scale, tested

Results = Callable[[Cell], dict[str, Any]]  # what is stored of a cell
Part = Table | Figure


@dataclass(frozen=True)
class Told:
    """What an experiment found: a sentence for the index, the text and the parts of its chapter."""

    finding: str
    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper, or of our own.

    Attributes:
        name: in `study list`; the paper's label where it has one.
        title: in words.
        labels: the paper's tables and figures that it answers.
        data: "MNIST", "CIFAR-10" or both.
        grid: scale → the cells, all independent of each other.
        tell: the results of those cells → what was found.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    data: str
    grid: Callable[[Scale], Sequence[Cell]]
    tell: Callable[[Scale, Results], Told]

    def trainings(self, scale: Scale) -> list[Train]:
        """The networks that the cells need, each once; they are trained before the cells run."""
        needed: dict[Training, None] = {}
        for cell in self.grid(scale):
            needed |= dict.fromkeys(getattr(cell, "needs", ()))
        return [Train(recipe, tested(scale)) for recipe in needed]

    def chapter(self, scale: Scale, results: Results) -> tuple[str, Chapter]:
        """The finding, and the chapter."""
        told = self.tell(scale, results)
        return told.finding, Chapter(self.name, self.title, self.labels, told.text, told.parts)
