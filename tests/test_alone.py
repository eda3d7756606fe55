"""Calls from several threads, under autocast and in inference mode: the sources stay, and results are the same."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

import partialfusion as pf
from rotation.networks import Transformer
from zoo import ZOO, identical, snapshot

THREADS, ROUNDS = (int(n) for n in os.environ.get("PARTIALFUSION_THREADS", "4,2").split(","))  # 8,20 in make fuzz


def models(seed: int = 0) -> list[nn.Module]:
    return [ZOO["vgg-bn"].model(seed + k).train() for k in range(2)]


def in_threads(work: Callable[[int], Any], count: int = THREADS * ROUNDS) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(count)))


def test_threads_that_share_their_models() -> None:
    sources, x = models(), ZOO["vgg-bn"].inputs()
    before, state = [snapshot(m) for m in sources], torch.random.get_rng_state()
    expected = snapshot(pf.fuse(sources, x, alpha=0.4).model)
    for found in in_threads(lambda _: pf.fuse(sources, x, alpha=0.4).model):
        assert identical(expected, found)
    assert all(identical(held, model) for held, model in zip(before, sources, strict=True))
    assert all(module.training for model in sources for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_threads_with_models_of_their_own() -> None:
    x = ZOO["vgg-bn"].inputs()
    expected = [snapshot(pf.fuse(models(seed), x, alpha=0.4).model) for seed in range(2)]
    results = in_threads(lambda k: pf.fuse(models(k % 2), x, alpha=0.4).model)
    assert all(identical(expected[k % 2], found) for k, found in enumerate(results))


def test_threads_that_rotate_and_refit() -> None:
    """Shared models, rotated in some threads and not in others."""
    sources, x = [Transformer(seed) for seed in range(2)], torch.randn(4, 4, 7)
    data = [torch.randn(32, 4, 7)]
    before = [snapshot(m) for m in sources]
    options = [{"similarity": "rotation"}, {"similarity": "rotation", "refit": True}, {"refit": True}]

    def fused(k: int) -> nn.Module:
        return pf.fuse(sources, x, data=data, alpha=0.5, **options[k % len(options)]).model  # type: ignore[arg-type]

    expected = [snapshot(fused(k)) for k in range(len(options))]
    for k, found in enumerate(in_threads(fused, len(options) * ROUNDS // 2)):
        assert identical(expected[k % len(options)], found)
    assert all(identical(held, model) for held, model in zip(before, sources, strict=True))


def test_threads_that_interpolate_and_prune() -> None:
    """Shared models and data, reduced together in some threads and one by one in others."""
    sources, x = models(), ZOO["vgg-bn"].inputs()
    data = [ZOO["vgg-bn"].inputs(seed) for seed in range(3)]
    before, given = [snapshot(m) for m in sources], [batch.clone() for batch in data]
    work: list[Callable[[], pf.Fusion]] = [
        lambda: pf.fuse(sources, x, data=data, alpha=0.5, method="interpolate", refit=True),
        lambda: pf.prune(sources[0], x, data=data, keep=0.5, method="interpolate"),
        lambda: pf.prune(sources[1], x, data=data, keep=0.5, method="cluster", refit=True),
        lambda: pf.prune(sources[0], x, keep=0.5, method="magnitude"),
    ]
    expected = [snapshot(reduce().model) for reduce in work]
    for k, found in enumerate(in_threads(lambda k: work[k % len(work)]().model, len(work) * ROUNDS // 2)):
        assert identical(expected[k % len(work)], found)
    assert all(identical(held, model) for held, model in zip(before, sources, strict=True))
    assert all(torch.equal(held, batch) for held, batch in zip(given, data, strict=True))


@pytest.mark.parametrize("mode", [torch.inference_mode(), torch.autocast("cpu"), torch.no_grad()])
def test_the_mode_of_the_caller_makes_no_difference(mode: AbstractContextManager[Any]) -> None:
    x = ZOO["vgg-bn"].inputs()
    data = [ZOO["vgg-bn"].inputs(seed) for seed in range(3)]
    sources = models()
    expected = pf.fuse(sources, x, alpha=0.4, data=data, refit=True).model
    with mode:
        inside = pf.fuse(sources, x.clone(), alpha=0.4, data=[batch.clone() for batch in data], refit=True).model
        small = pf.prune(sources[0], x, keep=0.5, method="interpolate", data=data).model
    assert identical(snapshot(expected), inside)
    for model in (inside, small):
        model.train()(x).square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_models_made_in_inference_mode_are_refused_with_the_cure() -> None:
    x = ZOO["vgg-bn"].inputs()
    with torch.inference_mode():
        made = models()
    with pytest.raises(pf.OptionError, match="made in inference mode.*copy.deepcopy"):
        pf.fuse(made, x)
    result = pf.fuse([copy.deepcopy(model) for model in made], x, alpha=0.4).model
    assert identical(snapshot(pf.fuse(models(), x, alpha=0.4).model), result)
