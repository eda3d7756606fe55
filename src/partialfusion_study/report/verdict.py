"""Verdicts: what becomes of a claim of the paper when the figures are measured again.

A verdict follows from figures by one of two rules, so that it changes when they do: a claim about several cases by how
many of them it holds in, a claim about the size of an effect by the fraction of it that is found. Where not all of the
paper's cases were measured, the verdict names those that were and those that were not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
    "in the other direction. A claim that nothing was measured for is *not tested*. Where only some of the paper's "
    "sizes, shares or widths were measured, the verdict is about those, and names the others."
)


@dataclass(frozen=True)
class Verdict:
    """One claim of the paper and what was found.

    Attributes:
        claim: the claim, in our words.
        outcome: the verdict.
        figures: what was measured, beside the paper's figures where it has any.
        scope: which of the paper's cases were measured and which were not; empty where all were.
    """

    claim: str
    outcome: Outcome
    figures: str
    scope: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise OptionError(f"the verdict on {self.claim!r} is {self.outcome!r}; choose among {', '.join(OUTCOMES)}")

    @classmethod
    def of(
        cls, claim: str, held: Iterable[bool], figures: str, *, often: bool = False, cases: str = "cases"
    ) -> Verdict:
        """The verdict on a claim about several cases: whether it holds in each of them, or `often`, in most.

        Args:
            claim: the claim, in our words.
            held: whether it holds, case by case.
            figures: what was measured; the number of cases is added.
            often: whether the claim is about most cases only.
            cases: what the cases are: "sizes".
        """
        found = list(held)
        if not found:
            return cls.untested(claim, "no case was measured")
        enough = 2 * sum(found) > len(found) if often else all(found)
        outcome: Outcome = "reproduced" if enough else "weaker" if any(found) else "contradicted"
        counted = f"; holds in {sum(found)} of {len(found)} {cases}" if len(found) > 1 else ""
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

    def among(self, kind: str, paper: Iterable[float], measured: Iterable[float]) -> Verdict:
        """The same verdict, which says which of the paper's cases it is about, unless all of them were measured.

        Args:
            kind: what the cases are: "α".
            paper: the cases of the paper's claim.
            measured: those that the verdict is about.
        """
        done = set(measured)
        here, lacking = ([f"{case:g}" for case in paper if (case in done) is known] for known in (True, False))
        if not lacking or self.outcome == "not tested":
            return self
        scope = f"{kind} {', '.join(here)}; not tested: {', '.join(lacking)}"
        return replace(self, scope=f"{self.scope}; {scope}" if self.scope else scope)


def tally(verdicts: Sequence[Verdict]) -> str:
    """How many verdicts of each kind: "2 reproduced (1 in part of the cases), 1 weaker"."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    parts = Counter(verdict.outcome for verdict in verdicts if verdict.scope)
    return ", ".join(
        f"{counts[outcome]} {outcome}{f' ({parts[outcome]} in part of the cases)' if parts[outcome] else ''}"
        for outcome in OUTCOMES
        if counts[outcome]
    )
