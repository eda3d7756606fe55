"""Interleaved timing."""

from __future__ import annotations

import itertools

import pytest
import torch

from partialfusion.core.timing import interleaved_times, medians, paired_quartiles, paired_ratios

CPU = torch.device("cpu")


def test_ratios_are_those_of_the_rounds() -> None:
    """Load that comes and goes makes all calls of a round slower; where it meets one call alone, the median holds."""
    load = [1.0, 1.0, 4.0, 4.0, 9.0, 1.0, 2.0]
    times = {name: [(factor * k, factor * k) for k in load] for name, factor in (("one", 1), ("two", 2), ("odd", 3))}
    times["odd"][2] = (500.0, 500.0)
    assert paired_ratios(times, "one", CPU) == pytest.approx({"two": 2.0, "odd": 3.0})


def test_every_function_runs_once_in_a_round_after_any_other() -> None:
    called: list[str] = []
    functions = {name: lambda name=name: called.append(name) for name in "abc"}
    times = interleaved_times(functions, seconds=0.0, fewest=40)
    rounds = [called[k : k + 3] for k in range(3, len(called), 3)]  # the first is to warm up
    assert {len(calls) for calls in times.values()} == {len(rounds)} == {40}
    assert all(sorted(some) == ["a", "b", "c"] for some in rounds)
    assert {*itertools.permutations("abc", 2)} <= {*itertools.pairwise(called[3:])}
    assert len(interleaved_times({"a": lambda: None}, seconds=60, most=7)["a"]) == 7


def test_medians() -> None:
    assert medians({"a": [(1.0, 5.0), (9.0, 4.0), (2.0, 6.0)]}) == {"a": (2.0, 5.0)}


def test_quartiles_are_of_the_ratios_within_rounds() -> None:
    """Load that slows all calls of a round alike leaves no trace."""
    slow = [1.0, 10.0, 3.0, 0.5]
    times = {
        "own": [(s, s) for s in slow],
        "twice": [(2 * s, 2 * s) for s in slow],
        "uneven": [(r * s, r * s) for s, r in zip(slow, (1.0, 2.0, 3.0, 4.0), strict=True)],
    }
    found = paired_quartiles(times, "own", torch.device("cpu"))
    assert found["twice"] == pytest.approx((2.0, 2.0, 2.0))
    assert found["uneven"] == pytest.approx((1.75, 2.5, 3.25))
    assert paired_ratios(times, "own", torch.device("cpu")) == pytest.approx({"twice": 2.0, "uneven": 2.5})
