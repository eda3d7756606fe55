"""Verdicts: what becomes of a claim of the paper when the figures are measured again.

A verdict follows from figures by one of two rules, so that it changes when they do: a claim about several cases by how
many of them it holds in, a claim about the size of an effect by the fraction of it that is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from partialfusion.errors import OptionError

Outcome = Literal["reproduced", "weaker", "contradicted", "not tested"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
ENOUGH = 0.5  # the fraction of the paper's effect that counts as the same effect

RULES = (
    "Every page ends with the paper's claims that its figures bear on. The verdicts are computed from the figures: a "
    "claim about several cases is *reproduced* where it holds in all of them (in most, if it says often or most), "
    "*weaker* where it holds in some, and *contradicted* where it holds in none; a claim about the size of an effect "
    "is reproduced by an effect of at least half that size, weaker with a smaller one, and contradicted by none or one "
    "in the other direction."
)


@dataclass(frozen=True)
class Verdict:
    """One claim of the paper and what was found.

    Attributes:
        claim: the claim, in our words.
        outcome: the verdict.
        figures: what was measured, beside the paper's figures where it has any.
    """

    claim: str
    outcome: Outcome
    figures: str

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise OptionError(f"the verdict on {self.claim!r} is {self.outcome!r}; choose among {', '.join(OUTCOMES)}")

    @classmethod
    def of(cls, claim: str, held: Iterable[bool], figures: str, *, often: bool = False) -> Verdict:
        """The verdict on a claim about several cases: whether it holds in each of them, or `often`, in most."""
        cases = list(held)
        if not cases:
            return cls.untested(claim, "no case was measured")
        enough = 2 * sum(cases) > len(cases) if often else all(cases)
        outcome: Outcome = "reproduced" if enough else "weaker" if any(cases) else "contradicted"
        counted = f" ({sum(cases)} of {len(cases)})" if len(cases) > 1 else ""
        return cls(claim, outcome, f"{figures}{counted}")

    @classmethod
    def of_size(cls, claim: str, ours: float, paper: float, figures: str) -> Verdict:
        """The verdict on a claim about the size of an effect, which is not zero in the paper."""
        found = ours / paper
        outcome: Outcome = "reproduced" if found >= ENOUGH else "weaker" if found > 0 else "contradicted"
        return cls(claim, outcome, figures)

    @classmethod
    def untested(cls, claim: str, why: str) -> Verdict:
        return cls(claim, "not tested", why)


def tally(verdicts: Sequence[Verdict]) -> str:
    """How many verdicts of each kind: "2 reproduced, 1 weaker"."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
