"""How long the stages of a call take compared with each other, so that progress moves evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..blueprint import Blueprint
from ..core.progress import ProgressCallback
from ..features.weights import operations
from ..fusing.align.alignment import SOLVING
from ..fusing.options import Recipe
from .files import TensorFiles

TRACING = 0.05  # of the bar: what comes after it is known only when it is done
# By the processor time of two GPT-2 small: bytes that are hashed, and of the last model that are written, in a second,
# operations of products in a second, and how many times all products are computed.
READING, WRITING, PRODUCTS = 7e8, 1e8, 5e10
PASSES = {"greedy": 0.5, "fixed-point": 2.0}


@dataclass
class Part:
    """A progress callback for a part of the work, of which the fraction never goes back."""

    report: ProgressCallback
    start: float
    end: float
    done: float = 0.0

    def __call__(self, label: str, done: float) -> None:
        self.done = max(self.done, done)
        self.report(label, self.start + (self.end - self.start) * self.done)


@dataclass(frozen=True)
class Stages:
    """Progress of what comes after tracing."""

    reading: Part
    matching: Part
    writing: Part

    @classmethod
    def of(cls, report: ProgressCallback, blueprint: Blueprint, recipe: Recipe, files: Sequence[TensorFiles]) -> Stages:
        """The stages with the shares of the bar that they will roughly take."""
        read = sum(f.size for f in files) / READING
        matched = 0.0
        if not (recipe.is_average or recipe.alpha == 1.0):
            spaces = [s for s in blueprint if s.kind != "rigid"]
            work = sum(operations(blueprint, s.width, s.bindings) + SOLVING * s.width**2 for s in spaces)
            matched = PASSES[recipe.align] * (len(files) - 1) * work / PRODUCTS
        written = files[-1].size / WRITING
        scale = (1 - TRACING) / max(read + matched + written, 1e-9)
        first, second = TRACING + scale * read, 1 - scale * written
        return cls(Part(report, TRACING, first), Part(report, first, second), Part(report, second, 1.0))
