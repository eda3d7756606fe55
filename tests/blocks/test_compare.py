"""Interleaved timing and the comparison of forms; the times themselves are not tested."""

from __future__ import annotations

import torch
from torch import nn

import partialfusion as pf
from partialfusion.blocks.compare import compare
from partialfusion.core.timing import interleaved_times, medians


def test_calls_are_interleaved() -> None:
    calls: list[str] = []
    times = interleaved_times({name: lambda name=name: calls.append(name) for name in "abc"}, seconds=0, fewest=4)
    assert "".join(calls) == "abc" * 5  # one round to warm up
    assert {name: len(found) for name, found in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert len(interleaved_times({"a": lambda: None}, seconds=60, most=7)["a"]) == 7


def test_medians() -> None:
    assert medians({"a": [(1.0, 5.0), (9.0, 4.0), (2.0, 6.0)]}) == {"a": (2.0, 5.0)}


def test_comparison() -> None:
    models = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in "ab"]
    x = torch.ones(2, 6)
    result = pf.fuse(models, x, alpha=0.5)
    found = compare(models, result, x, seconds=0.0)
    sizes = {s.form: s.parameters for s in found.speeds}
    single = result.count.single
    assert sizes["single"] == single
    assert sizes["ensemble"] == 2 * single
    assert sizes["dense"] == result.count.dense
    assert sizes["blocks"] == result.count.effective
    assert result.count.effective <= sizes["auto"] <= result.count.dense
    assert found.speeds[0].ratio == 1.0
    assert all(s.milliseconds > 0 for s in found.speeds)
    assert found.rounds == 9
    assert 0 <= found.block_layers <= found.layers == 1
    assert all(m.training for m in models)  # as they were
    for s in found.speeds:
        assert s.form in str(found)
