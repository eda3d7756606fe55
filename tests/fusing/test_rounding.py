"""Sizes in multiples of channels: what they are, and that everything exact stays exact."""

from __future__ import annotations

import copy
import logging
from functools import cache

import pytest
import torch
from torch import nn

import partialfusion as pf
from partialfusion.fusing.rounding import Grid, check_round_to, grids
from partialfusion_study.networks import ViT

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def net(width: int = 64, seed: int = 0) -> nn.Module:
    """Convolutions with a batch norm, and a linear layer behind them."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, width),
        nn.GELU(),
        nn.Linear(width, 4),
    ).eval()


@cache
def blueprint() -> pf.Blueprint:
    """Of networks of that width, for the tests that are not about tracing."""
    return pf.trace(net(), X)


def parts(result: pf.Fusion) -> list[int]:
    """The channels of every part of the elastic spaces."""
    spaces = [s for s in result.summary().spaces if s.kind == "elastic"]
    return [n for s in spaces for n in (s.fused, *s.isolated)]


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.4, 0.5, 0.7])
@pytest.mark.parametrize("multiple", [8, 16, 32])
def test_every_part_is_a_multiple(alpha, multiple):
    result = pf.fuse([net(seed=1), net(seed=2)], X, alpha=alpha, round_to=multiple, blueprint=blueprint())
    assert not [n for n in parts(result) if n % multiple]
    for s in result.summary().spaces[:-1]:
        assert abs(s.after - s.before * (1 + alpha)) <= multiple / 2, "not the nearest such size"


def test_the_ends_of_the_dial_stay():
    models = [net(seed=k) for k in range(3)]
    whole = pf.fuse(models, X, alpha=1, round_to=16)
    expected = torch.stack([m(X) for m in models]).mean(0)
    assert torch.allclose(whole.model(X), expected, atol=1e-5)
    fused = pf.fuse(models, X, alpha=0, round_to=16)
    assert [s.after for s in fused.summary().spaces] == [s.before for s in fused.summary().spaces]


def test_nearly_everything_isolated_is_the_ensemble():
    a, b = net(seed=1), net(seed=2)
    result = pf.fuse([a, b], X, alpha=0.95, round_to=32)
    assert result.count.effective > 1.9 * result.count.single
    assert torch.allclose(result.model(X), (a(X) + b(X)) / 2, atol=1e-5)


@pytest.mark.parametrize("round_to", [1, 16, "auto"])
def test_a_twin_stays_itself(round_to):
    a = net(seed=1)
    b = copy.deepcopy(a)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name in ("weight", "bias"):
            b[0]._parameters[name].copy_(a[0]._parameters[name][order])
        b[3].weight.copy_(a[3].weight[:, order])
    result = pf.fuse([a, b], X, alpha=0.4, round_to=round_to)
    assert torch.allclose(result.model(X), a(X), atol=1e-5)


def test_three_models_and_unequal_widths():
    three = pf.fuse([net(seed=k) for k in range(3)], X, alpha=0.4, round_to=16)
    assert not [s.after for s in three.summary().spaces[:-1] if s.after % 16]
    unequal = pf.fuse([net(64, 1), net(96, 2)], X, alpha=0.4, round_to=16)
    assert not [n for n in parts(unequal) if n % 16]
    whole = pf.fuse([net(64, 1), net(96, 2)], X, alpha=1, round_to=16)
    assert torch.allclose(whole.model(X), (net(64, 1)(X) + net(96, 2)(X)) / 2, atol=1e-5)


@pytest.mark.parametrize("method", ["cluster", "magnitude"])
def test_generalised_pruning_rounds_the_width(method):
    fused = pf.fuse([net(seed=1), net(seed=2)], X, alpha=0.3, method=method, round_to=16)
    smaller = pf.fuse([net(seed=1), net(seed=2)], X, alpha=-0.3, method=method, round_to=16)
    pruned = pf.prune(net(), X, keep=0.3, method=method, round_to=16)
    assert [s.after for s in fused.summary().spaces[:-1]] == [80, 160, 80]
    assert [s.after for s in smaller.summary().spaces[:-1]] == [48, 96, 48]
    assert [s.after for s in pruned.summary().spaces[:-1]] == [16, 32, 16]


@pytest.mark.parametrize("method", ["partial-ot", "cluster"])
def test_a_budget_takes_the_largest_such_size_within_it(method):
    result = pf.fuse([net(seed=1), net(seed=2)], X, budget=1.5, method=method, round_to=16)
    assert 1.2 < result.count.ratio <= 1.5
    assert not [s.after for s in result.summary().spaces[:-1] if s.after % 16]


def test_heads_are_rounded_as_wholes():
    torch.manual_seed(0)
    models, x = [ViT(32, 1, 8).eval() for _ in range(2)], torch.randn(1, 1, 28, 28)
    result = pf.fuse(models, x, alpha=0.4, round_to=8)  # heads of four channels: two at a time
    found = {s.name: s for s in result.summary().spaces}
    spaces = [s.name for s in result.blueprint if s.kind == "elastic" and s.step == 4]
    assert [found[name].isolated for name in spaces] == [(16, 16), (16, 16)]
    whole = pf.fuse(models, x, alpha=1, round_to=8)
    assert torch.allclose(whole.model(x), (models[0](x) + models[1](x)) / 2, atol=1e-5)


def test_what_cannot_be_met_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        result = pf.fuse([net(24, 1), net(24, 2)], X, alpha=0.4, round_to=16)
    assert not [n for n in parts(result) if n % 8]
    assert "not in multiples of 16" in caplog.text
    assert "not in multiples of 16, which their widths do not allow: 0 (8), 7 (8)" in str(result.summary())


def test_the_summary_says_the_size_that_was_taken():
    result = pf.fuse([net(seed=1), net(seed=2)], X, alpha=0.4, round_to=16)
    assert "rounded: 3 spaces in multiples of 16; alpha=0.4 became 0.375 to 0.5" in str(result.summary())
    plain = pf.fuse([net(seed=1), net(seed=2)], X, alpha=0.4, round_to=1)
    assert "rounded" not in str(plain.summary())
    assert [s.isolated for s in plain.summary().spaces[:2]] == [(26, 26), (51, 51)]


def test_auto_rounds_where_the_space_is_large_enough():
    def multiples(width: int, device: str = "cpu") -> list[int]:
        blueprint = pf.trace(net(width), X)
        widths = {s.name: [s.width] * 2 for s in blueprint}
        return [g.channels for g in grids("auto", blueprint, widths, device, fuses=True).values()][:-1]

    assert multiples(64) == [16, 16, 8]
    assert multiples(64, "cuda") == [8, 8, 8]
    assert multiples(32) == [8, 16, 8]
    assert multiples(16) == [1, 8, 1]
    assert multiples(50) == [1, 1, 1]


def test_sizes_of_a_grid():
    grid = Grid((64, 96), multiple=16)
    assert grid.alphas(20) == [0.0, 0.5, 1.0]
    assert [grid.alpha(a) for a in (0.0, 0.2, 0.25, 0.74, 1.0)] == [0.0, 0.0, 0.5, 0.5, 1.0]
    assert Grid((64,), multiple=16).kept(20) == [0.25, 0.5, 0.75, 1.0]
    assert Grid((100,), multiple=16).keep(0.5) == 0.48
    assert Grid((100,), multiple=16).keep(1.0) == 1.0
    assert Grid((100,), multiple=16).keep(0.01) == 0.16
    assert Grid((90, 100)).alpha(0.123) == 0.123


@pytest.mark.parametrize("wrong", [0, -8, 1.5, "16", True, None])
def test_wrong_options(wrong):
    with pytest.raises(pf.OptionError, match="round_to"):
        check_round_to(wrong)
