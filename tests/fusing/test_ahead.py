"""A partial alignment starts from the costs of the full one: what is solved with them on the way is the same."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import partialfusion as pf
from partialfusion.features import TracedModel, WeightCosts
from partialfusion.fusing.align import Alignment, FixedCosts, Problem, aligner
from partialfusion.fusing.align.alignment import CostsAt
from zoo import ZOO

descent = importlib.import_module("partialfusion.fusing.align.fixed_point")
NAMES = ("vgg", "resnet")  # layers with features enough that products are worth saving


def models(name: str) -> tuple[list[Any], Any]:
    return [ZOO[name].model(k) for k in range(2)], ZOO[name].inputs()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Problem, Alignment]]:
    """The full alignments that were found, with their problems; nothing is kept between products."""
    seen = []
    usual = aligner.fixed_point

    def noted(problem: Problem, **options: Any) -> Alignment:
        found = usual(problem, **options)
        seen.append((problem, found))
        return found

    monkeypatch.setattr(aligner, "fixed_point", noted)
    monkeypatch.setattr(TracedModel, "kept", 0)
    return seen


@pytest.mark.parametrize("least", [1e-4, 0.03])  # the descent ends early, when some neighbours have moved again
@pytest.mark.parametrize("name", NAMES)
def test_what_is_solved_ahead_is_what_the_costs_at_the_end_give(
    name: str, least: float, full: list[tuple[Problem, Alignment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descent, "LEAST_GAIN", least)
    given, x = models(name)
    pf.fuse(given, x, alpha=0.4, check=False)
    [(problem, found)] = full
    assert found.ahead
    expected = FixedCosts(CostsAt(problem, found.couplings), problem.ahead)
    for (space, alpha), coupling in found.ahead.items():
        assert alpha in problem.ahead[space]
        again = expected.couple(space, alpha)
        assert all((a == b).all() for a, b in zip(coupling.fused_part(), again.fused_part(), strict=True)), space


@pytest.mark.parametrize("name", NAMES)
def test_it_saves_products_and_no_bit_changes(
    name: str, full: list[tuple[Problem, Alignment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, x = models(name)
    made = 0
    usual = WeightCosts._slices

    def counted(*call: Any) -> Any:
        nonlocal made
        made += 1
        return usual(*call)

    monkeypatch.setattr(WeightCosts, "_slices", counted)
    found = pf.fuse(given, x, alpha=0.4, check=False)
    fewer, made = made, 0
    monkeypatch.setattr(WeightCosts, "is_kept", lambda *_: True)
    expected = pf.fuse(given, x, alpha=0.4, check=False)
    assert fewer < made
    assert len(full[0][1].ahead) > len(full[1][1].ahead) == 0
    ours, theirs = found.model.state_dict(), expected.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_with_room_for_products_nothing_is_solved_twice(
    full: list[tuple[Problem, Alignment]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TracedModel, "kept", 2**30)
    given, x = models("vgg")
    pf.fuse(given, x, alpha=0.4, check=False)
    pf.fuse(given, x, alpha=0.0, check=False)
    assert [found.ahead for _, found in full] == [{}, {}]
