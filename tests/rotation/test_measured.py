"""similarity="auto": channels and directions are both tried, and what is nearer to the models on the data is taken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import partialfusion as pf

from .networks import Bottleneck, Transformer, rotated_by_hand, samples
from .test_rotation import batches, fused, gap, output, traced, turned_bottleneck

MODELS = [Transformer(0), Transformer(1)]


def pruned(**options: Any) -> pf.Fusion:
    known: dict[str, Any] = {"blueprint": traced("layer norm"), "keep": 0.5, "data": batches()}
    return pf.prune(MODELS[0], samples(2), **known | options)


WAYS: dict[str, Callable[..., pf.Fusion]] = {
    "partial OT": lambda **how: fused(MODELS, alpha=0.25, mix=0.3, **how),
    "interpolated and refitted": lambda **how: fused(MODELS, alpha=0.0, mix=0.3, method="auto", refit=True, **how),
    "in a budget": lambda **how: fused(MODELS, budget=1.3, mix=0.3, align="greedy", **how),
    "pruned": lambda **how: pruned(method="cluster", **how),
    "pruned, interpolated and refitted": lambda **how: pruned(method="auto", **how),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_result_that_is_nearer_to_the_models_is_taken(way: str) -> None:
    with torch.no_grad():
        x = torch.cat(batches())
        wanted = MODELS[0](x) if "pruned" in way else 0.3 * MODELS[0](x) + 0.7 * MODELS[1](x)
        results = {basis: WAYS[way](similarity=basis) for basis in ("permutation", "rotation")}
        apart = {basis: float((r.model(x) - wanted).square().sum()) for basis, r in results.items()}
        found = WAYS[way](similarity="auto")
        best = min(apart, key=apart.__getitem__)
        assert found.recipe.similarity == best
        assert bool(found.rotated) == (best == "rotation")
        torch.testing.assert_close(found.model(x), results[best].model(x))
    assert list(found.compared) == ["permutation", "rotation"]
    ratio = apart["rotation"] / apart["permutation"]
    assert found.compared["rotation"] / found.compared["permutation"] == pytest.approx(ratio, rel=1e-3)
    assert "permutation" in str(found.summary()).split("nearest to the models")[1]


def test_a_rotated_twin_is_recovered_by_directions_and_a_model_itself_by_channels() -> None:
    twin = fused([rotated_by_hand(MODELS[0]), MODELS[0]], alpha=0.0, similarity="auto")
    itself = fused([MODELS[0], MODELS[0]], alpha=0.0, similarity="auto")
    assert (twin.recipe.similarity, itself.recipe.similarity) == ("rotation", "permutation")
    for result in (twin, itself):
        assert gap(output(result.model), output(MODELS[0])) < 1e-4


def test_methods_are_tried_with_both_where_no_transformer_may_be_rotated() -> None:
    model, x = Bottleneck(), torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    how: dict[str, Any] = {"data": [x], "alpha": 0.0, "method": "auto", "allow_shortfall": True}
    found = pf.fuse([turned_bottleneck(model), model], x, similarity="auto", **how)
    assert set(found.compared) == {f"{m}, {b}" for m in ("interpolate", "cluster") for b in ("permutation", "rotation")}
    assert found.rotated == ("first",)
    assert not pf.fuse([turned_bottleneck(model), model], x, **how).rotated  # the default does not look there


def test_where_there_is_nothing_to_choose_nothing_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    plain = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    x = torch.randn(5, 4)
    with caplog.at_level(logging.WARNING):
        results = [
            fused(MODELS, alpha=1.0, similarity="auto"),
            fused(MODELS, alpha=0.2, similarity="auto", data=None),
            fused(MODELS, method="average", similarity="auto"),
            pf.fuse(plain, x, alpha=0.0, data=[x], similarity="auto"),
        ]
    assert not caplog.records
    for result in results:
        assert (result.recipe.similarity, result.compared, result.rotated) == ("permutation", {}, ())


def test_a_frontier_tries_both_at_every_size() -> None:
    how: dict[str, Any] = {"data": batches(), "blueprint": traced("layer norm"), "alphas": [0.5], "progress": False}
    best = fused(MODELS, alpha=0.5, similarity="auto", refit="auto")
    found = pf.frontier(MODELS, samples(2), evaluate=lambda m: float(output(m).sum()), similarity="auto", **how)
    (point,) = (p for p in found.points if p.kind == "fused")
    assert point.score == pytest.approx(float(output(best.model).sum()), rel=1e-4)
