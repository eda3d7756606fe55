"""The layout of blocks, and models as wholes beside those that they replace; no test depends on times."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.blocks import BlockConv2d, BlockLayer, block_report, convert, from_blocks, timing, to_blocks
from partialfusion.blocks.whole import WholeTimes, whole_times
from partialfusion.core.inputs import Inputs
from partialfusion.fusing.budget import Stopwatch
from partialfusion.surgery.layout import in_channels_last
from partialfusion.tradeoff.cost import Timer
from zoo import identical

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Small(nn.Module):
    """Two convolutions and a classifier that reads their activations in whatever order they have in memory."""

    def __init__(self, *, viewed: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8 * 64, 4)
        self.viewed = viewed

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(x.view(len(x), -1) if self.viewed else x.flatten(1))


def fused(alpha: float = 0.5, **options: bool) -> pf.Fusion:
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        models.append(Small(**options).eval())
    return pf.fuse(models, X, alpha=alpha)


def is_last(weight: Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def test_blocks_of_convolutions_are_channels_last() -> None:
    result = fused()
    before = result.model.second.weight.clone()
    model = to_blocks(result, X)
    assert isinstance(model.second, BlockConv2d)
    assert all(is_last(block.weight) for block in model.second.blocks)
    assert is_last(model.first.weight)
    assert "channels-last" in str(block_report(model))
    assert torch.allclose(model(X), result.model(X), atol=1e-5)
    assert torch.equal(result.model.second.weight, before)
    assert not is_last(result.model.second.weight), "the fused model stays as it is"
    assert identical(result.model.state_dict(), from_blocks(model))


def test_code_that_depends_on_the_layout_keeps_it() -> None:
    result = fused(viewed=True)
    model = to_blocks(result, X)
    assert isinstance(model.second, BlockConv2d)
    assert not any(is_last(block.weight) for block in model.second.blocks)
    assert not block_report(model).channels_last
    assert torch.allclose(model(X), result.model(X), atol=1e-5)
    assert in_channels_last(result.model, Inputs.of(X)) is result.model


def test_tied_convolutions_stay_tied_in_another_layout() -> None:
    model = Small().eval()
    model.third = nn.Conv2d(8, 8, 3, padding=1)
    model.third.weight = model.second.weight
    copied = in_channels_last(model, Inputs.of(X))
    assert copied is not model
    assert copied.third.weight is copied.second.weight
    assert copied.last.weight is model.last.weight


@pytest.mark.parametrize("fastest", ["dense", "dense, channels-last", "blocks"])
def test_auto_takes_the_fastest_form_of_the_whole(fastest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fused()
    monkeypatch.setattr(timing, "paired_times", lambda *_: (2.0, 1.0))
    ratios = {form: 1.0 + (form != fastest) for form in ("dense", "dense, channels-last", "blocks")}
    monkeypatch.setattr(Stopwatch, "ratios", lambda self, others: {form: ratios.get(form, 1.5) for form in others})
    model = to_blocks(result, X, mode="auto")
    report = block_report(model)
    assert any(isinstance(m, BlockLayer) for m in model.modules()) == (fastest == "blocks")
    assert report["second"].blocks == (fastest == "blocks")
    assert is_last(model.first.weight) == report.channels_last == (fastest != "dense")
    assert report.times.ensemble == 1.5
    assert not report.slower
    assert "the models one by one 1.50" in str(report)
    assert torch.allclose(model(X), result.model(X), atol=1e-5)


def test_what_is_slower_than_the_models_one_by_one_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times = WholeTimes("the last model", {"dense": 2.4, "dense, channels-last": 2.3, "blocks": 2.2}, 2.0)
    monkeypatch.setattr(convert, "whole_times", lambda *_: times)
    with caplog.at_level(logging.WARNING):
        report = block_report(to_blocks(fused(), X, mode="auto"))
    assert report.slower
    said = "relative to the last model: 2.20, as a dense module 2.40, the models one by one 2.00; SLOWER"
    assert said in str(report)
    assert said in caplog.text


def test_the_reference_without_sources_is_the_dense_module(monkeypatch: pytest.MonkeyPatch) -> None:
    result = fused()
    monkeypatch.setattr(Stopwatch, "ratios", lambda self, others: dict.fromkeys(others, 0.5))
    found = whole_times({"dense": result.model, "blocks": to_blocks(result)}, (), Inputs.of(X))
    assert (found.forms, found.ensemble) == ({"dense": 1.0, "blocks": 0.5}, None)


@pytest.mark.parametrize("last", [True, False])
def test_the_models_are_timed_in_the_layout_that_is_faster(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the models one by one would seem slower than they are, and a fused one fast beside them."""
    result = fused()
    seen = []

    def ratios(self: Stopwatch, others: dict[str, nn.Module]) -> dict[str, float]:
        for model in (self.model, *others.values()):
            seen.append([is_last(m.weight) for m in model.modules() if isinstance(m, nn.Conv2d)])
        return dict.fromkeys(others, 0.9 if last else 1.1)

    monkeypatch.setattr(Stopwatch, "ratios", ratios)
    whole_times({"dense": result.model}, result.sources, Inputs.of(X))
    usual, tried, *timed = seen
    assert (usual, tried) == ([False] * 2, [True] * 2)
    reference, dense, together = timed
    assert (reference, dense, together) == ([last] * 2, [False] * 2, [last] * 4)
    seen.clear()
    frontier_timer = Timer(result.sources[-1], Inputs.of(X))
    frontier_timer.module("ensemble", result.sources[0])
    assert seen[2:] == [[last] * 2, [last] * 2]
