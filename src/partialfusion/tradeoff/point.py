"""One network of a frontier, measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..core.arrays import Floats
from ..core.literals import Size
from ..core.text import mix_text
from ..fusing.result import SpaceSummary

ROUNDING = 1e-6  # of a score: the same sum in another order
Kind = Literal["parent", "ensemble", "fused"]
COLUMN: dict[Size, str] = {"dense": "parameters", "effective": "as blocks"}  # what the size is called


@dataclass(frozen=True, eq=False)
class Similarity:
    """How similar the channels of a space are: each of another model to its counterpart in the last model.

    Attributes:
        costs: (p,) what the matching paid for each fused pair, in the units of the features; empty for methods that do
            not match pairs.
        fused: (p,) similarity of each fused pair, −1 … 1: the correlation of activations where there is data, else the
            cosine of the weights that write and read the channels.
        isolated: (q,) the same for channels that stay apart and the counterpart they would have had.
    """

    costs: Floats
    fused: Floats
    isolated: Floats

    @classmethod
    def unknown(cls) -> Similarity:
        return cls(np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True, eq=False)
class SpacePoint:
    """One space of a fused network: what became of its channels, and how similar they were."""

    summary: SpaceSummary
    similarity: Similarity


@dataclass(frozen=True, eq=False)
class Point:
    """One network, measured.

    Attributes:
        kind: "parent", "ensemble" (outputs mixed) or "fused".
        method: the name of the parent, "ensemble", or the method that fused.
        alpha: the isolated fraction; None where it is not one number.
        mix: the share of each model.
        score: what `evaluate` gave, larger is better; None where the network could not be made or measured.
        parameters: the size that the frontier goes by, one of the next two.
        dense: parameters of the module.
        effective: parameters without the zero blocks, as blocks and files hold them.
        ratio: `parameters` relative to the last model.
        flops: operations of the module in one call with the example inputs; None where they cannot be counted.
        latency: time of such a call relative to the last model, where that was asked for: of the module ("dense"), as
            blocks ("blocks"), and with blocks where these are faster ("auto").
        budget: the budget that the size was found for, in words.
        seconds: spent on fusing (and refitting), without the evaluation.
        features: what channels were compared by.
        cost: cost of the matching or clustering, over all spaces.
        sweeps, converged: how many sweeps the alignment made, and whether it converged.
        spaces: what became of the channels, in the order of computation.
        error: why there is no score.
    """

    kind: Kind
    method: str
    alpha: float | None
    mix: tuple[float, ...]
    score: float | None = None
    parameters: int | None = None
    dense: int | None = None
    effective: int | None = None
    ratio: float | None = None
    seconds: float = 0.0
    features: str | None = None
    cost: float | None = None
    sweeps: int | None = None
    converged: bool | None = None
    spaces: tuple[SpacePoint, ...] = ()
    error: str | None = None
    flops: int | None = None
    latency: Mapping[str, float] | None = None
    budget: str | None = None

    @property
    def fused(self) -> int:
        """Channels of all spaces that several models share."""
        return sum(s.summary.fused for s in self.spaces)

    @property
    def isolated(self) -> int:
        """Channels of all spaces that one model has for itself."""
        return sum(sum(s.summary.isolated) for s in self.spaces)

    def __repr__(self) -> str:
        alpha = "" if self.alpha is None else f", alpha={self.alpha:g}"
        alpha += "" if self.budget is None else f", budget={self.budget}"
        found = f"failed: {self.error}" if self.score is None else f"score {self.score:.4g}, {self.ratio:.2f}×"
        return f"Point({self.method}{alpha}, mix={mix_text(self.mix)}, {found})"


def slower_than_ensemble(point: Point, points: Sequence[Point]) -> tuple[str, ...]:
    """The forms in which a fused network takes longer than the ensemble with its mix, where both were timed."""
    ensembles = [p for p in points if p.kind == "ensemble" and p.mix == point.mix]
    if point.kind != "fused" or point.latency is None or not ensembles or ensembles[0].latency is None:
        return ()
    limit = ensembles[0].latency
    return tuple(form for form, time in point.latency.items() if time > limit[form])


def pareto(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """The points that no other beats: none is as small and better, or as good and smaller. By size.

    Scores that differ by rounding are equal: a larger network must gain more than that.
    """
    known = [(p.parameters, p.score, p) for p in points if p.score is not None and p.parameters is not None]
    front: list[Point] = []
    best, at = float("-inf"), -1
    for size, score, point in sorted(known, key=lambda found: (found[0], -found[1])):
        if score > _more_than(best) or (size == at and score == best):
            front.append(point)
            best, at = score, size
    return tuple(front)


def _more_than(score: float) -> float:
    return score + ROUNDING * abs(score) if math.isfinite(score) else score
