"""A few random networks; `make fuzz` tries many."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fuzz.networks import SIZE, Network, findings


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int) -> None:
    assert list(findings(seed)) == []


def test_a_seed_is_one_network() -> None:
    x = torch.randn(2, 3, SIZE, SIZE)
    assert torch.equal(Network(3, 1)(x), Network(3, 1)(x))
    assert not torch.equal(Network(3, 1)(x), Network(3, 2)(x))
    assert dict(Network(3, 1).named_parameters()).keys() == dict(Network(3, 2).named_parameters()).keys()


def test_outcomes_are_counted_and_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: Counter[str] = Counter()
    monkeypatch.setattr("fuzz.networks.SAME", 0.0)
    found = list(findings(0, outcomes))
    assert any("outputs differ by" in finding for finding in found)
    assert sum(outcomes.values()) == 1
