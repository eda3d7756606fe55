"""Verdicts follow from figures: by the cases in which a claim holds, or by the size of an effect."""

from __future__ import annotations

import pytest

from partialfusion.errors import OptionError
from partialfusion_study.report import Line, Verdict
from partialfusion_study.report.verdict import tally


@pytest.mark.parametrize(
    ("held", "often", "outcome"),
    [
        ([True, True, True], False, "reproduced"),
        ([True, True, False], False, "weaker"),
        ([True, True, False], True, "reproduced"),
        ([True, False], True, "weaker"),  # half of the cases are not most of them
        ([False, False], False, "contradicted"),
        ([False, False], True, "contradicted"),
        ([], False, "not tested"),
    ],
)
def test_cases(held: list[bool], often: bool, outcome: str) -> None:
    assert Verdict.of("It holds.", held, "figures", often=often).outcome == outcome


def test_figures_say_in_how_many_cases() -> None:
    assert Verdict.of("It holds.", [True, False, False], "1, 2, 3", cases="sizes").figures == (
        "1, 2, 3; holds in 1 of 3 sizes"
    )
    assert Verdict.of("It holds.", [True], "1").figures == "1"


@pytest.mark.parametrize(
    ("ours", "paper", "outcome"),
    [
        (2.0, 1.8, "reproduced"),
        (0.9, 1.8, "reproduced"),
        (0.8, 1.8, "weaker"),
        (0.0, 1.8, "contradicted"),
        (-1.0, 1.8, "contradicted"),
        (-1.0, -1.8, "reproduced"),
        (1.0, -1.8, "contradicted"),
    ],
)
def test_sizes(ours: float, paper: float, outcome: str) -> None:
    assert Verdict.of_size("It gains.", ours, paper, "figures").outcome == outcome


def test_a_verdict_names_the_papers_cases_that_were_not_measured() -> None:
    every = Verdict.of("It holds.", [True, True], "1, 2")
    assert every.among("α", (0.4, 0.8), (0.8, 0.4)) == every
    part = every.among("α", (0.2, 0.4, 0.8, 1.0), (0.0, 0.4, 0.8))
    assert (part.outcome, part.scope) == ("reproduced", "α 0.4, 0.8; not tested: 0.2, 1")
    assert part.among("width", (100, 200), [100]).scope == f"{part.scope}; width 100; not tested: 200"
    nothing = Verdict.untested("It holds.", "no time")
    assert nothing.among("α", (0.2,), ()) == nothing


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(OptionError, match="maybe"):
        Verdict("It holds.", "maybe", "")  # type: ignore[arg-type]


def test_tally() -> None:
    found = [Verdict.of("a", [True], ""), Verdict.untested("b", "no time"), Verdict.of("c", [True], "")]
    assert tally(found) == "2 reproduced, 1 not tested"
    part = found[0].among("α", (0, 1), (0,))
    assert tally([*found, part]) == "3 reproduced (1 in part of the cases), 1 not tested"
    assert tally([]) == ""


def test_bands_appear_with_several_seeds() -> None:
    one, several = (Line.of("a", (0.0, 1.0), samples) for samples in ([[1.0], [2.0]], [[1.0, 3.0], [2.0, 2.0]]))
    assert (one.y, one.spread) == ((1.0, 2.0), None)
    assert several.y == (2.0, 2.0)
    assert several.spread == pytest.approx((2**0.5, 0.0))
