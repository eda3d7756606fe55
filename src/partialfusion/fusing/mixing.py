"""What mix="auto" measured: scores of shares of the models, and what they say."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.literals import Mix
from ..core.text import mix_text, table

SURE = 2.0  # standard errors beyond which two scores differ
MOST = 0.5  # fraction of the grid: where as many mixes score alike, the samples are too few


@dataclass(frozen=True)
class MixPoint:
    """One mix that was measured.

    Attributes:
        mix: the share of each model.
        score: the score of the fusion with this mix.
        behind: how much lower than the best score.
        error: standard error of `behind`, from the differences sample by sample; None where only sums are known.
    """

    mix: Mix
    score: float
    behind: float = 0.0
    error: float | None = None

    @property
    def alike(self) -> bool:
        """Whether it is within two standard errors of the best; without errors, whether it scores the same."""
        return self.behind <= SURE * (self.error or 0.0)


@dataclass(frozen=True, repr=False)
class Mixing:
    """The mixes that were measured, and the best of them. Prints as a table.

    Attributes:
        points: in the order of the shares of the first model, then of the second, ….
        mix: the best; of several that score the same, the one nearest to equal shares.
        metric: the name of the scores.
        samples: how many samples were scored; None where the measure gives one number for all.
        alike: fraction of the coarse grid that is within two standard errors of the best.
    """

    points: tuple[MixPoint, ...]
    mix: Mix
    metric: str
    samples: int | None
    alike: float

    @property
    def clear(self) -> bool | None:
        """Whether the samples are enough to tell good mixes from bad ones; None where that is not known."""
        return None if self.samples is None else self.alike < MOST

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = [
            [mix_text(p.mix), f"{p.score:.4f}", self._behind(p), "best" if p.mix == self.mix else ""]
            for p in self.points
        ]
        return table(("mix", self.metric, "behind the best", ""), rows, align="<>>") + "\n" + self._conclusion()

    def _behind(self, point: MixPoint) -> str:
        return f"{point.behind:.4f}" if point.error is None else f"{point.behind:.4f} ± {point.error:.4f}"

    def _conclusion(self) -> str:
        if self.clear is None:
            return "no confidence estimate: evaluate returned one score for all samples"
        if self.clear:
            return f"{self.samples:,} samples distinguish the mixes"
        return self.warning()

    def warning(self) -> str:
        """The message where the samples are too few."""
        return (
            f"{self.samples:,} samples do not distinguish the mixes: {self.alike:.0%} of the coarse grid scores alike "
            "within two standard errors; evaluate on more samples"
        )
