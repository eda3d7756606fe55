"""Generalised pruning over the zoo: the extremes are exact, duplicates cost nothing, counts are as asked."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.blueprint import Blueprint
from partialfusion.core.inputs import Inputs
from partialfusion.kernels import KernelPair, Plan, Reduction
from partialfusion.surgery import apply
from zoo import STIFF, ZOO, error, identical, permuted_twin, randomised, snapshot

TOLERANCE = 1e-5
EXHIBITS = {**ZOO, **STIFF}
METHODS = ("cluster", "zip", "magnitude", "magnitude+ot")
zoo = pytest.mark.parametrize("name", ZOO)
everything = pytest.mark.parametrize("name", EXHIBITS)
methods = pytest.mark.parametrize("method", METHODS)


@cache
def blueprint_of(name: str) -> Blueprint:
    return pf.trace(EXHIBITS[name].model(0), EXHIBITS[name].inputs())


def data_of(name: str) -> list[Tensor]:
    """Enough samples that no channel is silent on all of them."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(100, *EXHIBITS[name].shape, generator=generator) for _ in range(2)]


def elastic(blueprint: Blueprint) -> list[str]:
    return [s.name for s in blueprint if s.kind == "elastic"]


def duplicated(model: nn.Module, blueprint: Blueprint, x: Tensor, seed: int) -> nn.Module:
    """The same function with some channels of every elastic space twice, sharing what they feed in unequal parts."""
    rng = np.random.default_rng(seed)
    reductions = {}
    for space in blueprint:
        n = space.width
        more = rng.permutation(n)[: max(1, n // 3)] if space.kind == "elastic" else np.arange(0)
        source = np.concatenate([np.arange(n), more])
        part = rng.uniform(0.3, 0.7, len(more))
        read = np.ones(len(source))
        read[n:] = part
        read[more] = 1 - part
        pair = KernelPair(np.arange(len(source)), source, np.ones(len(source)), read, len(source), n)
        reductions[space.name] = Reduction((pair,), 0, (len(source),), (KernelPair.identity(n),))
    return apply([model], [blueprint], Plan(reductions, (1.0,)), Inputs.of(x)).model


@everything
@methods
def test_keeping_everything_is_the_identity(name: str, method: str) -> None:
    model, x = EXHIBITS[name].model(0), EXHIBITS[name].inputs()
    for data in (None, data_of(name)):
        result = pf.prune(model, x, keep=1.0, method=method, data=data, blueprint=blueprint_of(name))
        assert error(result.model(x), model(x)) < TOLERANCE
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), result.model.parameters(), strict=True))


@zoo
@methods
def test_alpha_one_is_the_ensemble_with_or_without_data(name: str, method: str) -> None:
    a, b, x = EXHIBITS[name].model(0), EXHIBITS[name].model(1), EXHIBITS[name].inputs()
    for data in (None, data_of(name)):
        fused = pf.fuse([a, b], x, alpha=1.0, mix=(0.3, 0.7), method=method, data=data, blueprint=blueprint_of(name))
        assert error(fused.model(x), 0.3 * a(x) + 0.7 * b(x)) < TOLERANCE


@zoo
@pytest.mark.parametrize("method", ["cluster", "zip"])
@pytest.mark.parametrize("site", ["pre", "post"])
def test_duplicates_are_merged_without_a_trace(name: str, method: str, site: str) -> None:
    model, x, blueprint = EXHIBITS[name].model(0), EXHIBITS[name].inputs(), blueprint_of(name)
    wide = duplicated(model, blueprint, x, seed=1)
    assert error(wide(x), model(x)) < TOLERANCE
    traced = pf.trace(wide, x, check=False)
    keep = {s: blueprint[s].width / traced[s].width for s in elastic(blueprint)}
    result = pf.prune(wide, x, keep=keep, method=method, site=site, data=data_of(name), norm="analytic")
    assert {s: result.plan[s].width for s in keep} == {s: blueprint[s].width for s in keep}
    assert error(result.model(x), model(x)) < TOLERANCE


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.SiLU])
def test_duplicates_with_biases_and_batch_norm(activation: type[nn.Module]) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        activation(),
        nn.Conv2d(6, 5, 3),
        activation(),
        nn.Flatten(),
        nn.LazyLinear(4),
    )
    x = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(0))
    net(x)
    model = randomised(net, 3)
    blueprint = pf.trace(model, x)
    wide = duplicated(model, blueprint, x, seed=2)
    keep = {"0": 6 / 8, "3": 5 / 6}
    for features in ("activations", "weights", "both"):
        result = pf.prune(wide, x, keep=keep, data=[x], features=features, norm="analytic")
        assert [result.plan[s].width for s in keep] == [6, 5]
        assert error(result.model(x), model(x)) < (TOLERANCE if features == "activations" else 1.0)
    assert error(pf.prune(wide, x, keep=keep, data=[x]).model(x), model(x)) < TOLERANCE
    recalibrated = pf.prune(wide, x, keep=keep, data=[x], norm="recalibrate")
    reference = pf.prune(model, x, keep=1.0, data=[x], norm="recalibrate")
    assert error(recalibrated.model(x), reference.model(x)) < TOLERANCE


@everything
@pytest.mark.parametrize("mix", [(0.5, 0.5), (0.2, 0.8), (1.0, 0.0)])
def test_clustering_a_model_with_itself_or_a_twin_is_the_model(name: str, mix: tuple[float, float]) -> None:
    model, x = EXHIBITS[name].model(0), EXHIBITS[name].inputs()
    twin = permuted_twin(model, x, 5, blueprint_of(name))
    for options in ({"data": data_of(name), "norm": "analytic"}, {"features": "weights"}):
        for models in ([model, model], [twin, model]):
            fused = pf.fuse(models, x, alpha=0.0, mix=mix, method="cluster", blueprint=blueprint_of(name), **options)
            assert error(fused.model(x), model(x)) < TOLERANCE


@everything
@methods
@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_one_is_that_model(name: str, method: str, share: int) -> None:
    models, x = [EXHIBITS[name].model(0), EXHIBITS[name].model(1)], EXHIBITS[name].inputs()
    mix = [0.0, 0.0]
    mix[share] = 1.0
    for alpha, data in ((0.0, None), (0.4, data_of(name))):
        fused = pf.fuse(models, x, alpha=alpha, mix=mix, method=method, data=data, blueprint=blueprint_of(name))
        assert error(fused.model(x), models[share](x)) < TOLERANCE


@everything
@methods
def test_channel_counts_are_as_asked(name: str, method: str) -> None:
    models, x, blueprint = [EXHIBITS[name].model(s) for s in range(3)], EXHIBITS[name].inputs(), blueprint_of(name)
    for data in (None, data_of(name)):
        fused = pf.fuse(models, x, alpha=0.3, method=method, data=data, blueprint=blueprint)
        for space in map(blueprint.__getitem__, elastic(blueprint)):
            assert fused.plan[space.name].width == space.width + 2 * space.step * round(0.3 * space.steps)
        pruned = pf.prune(models[0], x, keep=0.6, method=method, data=data, blueprint=blueprint)
        for space in map(blueprint.__getitem__, elastic(blueprint)):
            assert pruned.plan[space.name].width == space.step * round(0.6 * space.steps)
        for result in (fused, pruned):
            assert torch.isfinite(result.model(x)).all()
            for reduction in result.plan.values():
                assert sum(p.write_matrix().sum(1) for p in reduction.pairs) == pytest.approx(1.0)
                rows = np.concatenate([p.read_matrix().sum(1) for p in reduction.pairs])
                assert ((np.abs(rows) < 1e-9) | (np.abs(rows - 1) < 1e-9)).all()
                assert (rows > 0).all() or method == "magnitude"


@zoo
@methods
def test_unequal_widths(name: str, method: str) -> None:
    exhibit = ZOO[name]
    x = exhibit.inputs()
    a, b = exhibit.model(0, exhibit.widths[1]), exhibit.model(1)
    for data in (None, data_of(name)):
        options = {"method": method, "data": data, "blueprint": blueprint_of(name)}
        ensemble = pf.fuse([a, b], x, alpha=1.0, mix=(0.3, 0.7), **options)
        assert error(ensemble.model(x), 0.3 * a(x) + 0.7 * b(x)) < TOLERANCE
        small = pf.fuse([a, b], x, alpha=0.0, **options)
        assert [p.shape for p in small.model.parameters()] == [p.shape for p in b.parameters()]
        assert torch.isfinite(small.model(x)).all()


@zoo
def test_chosen_spaces_stay_apart(name: str) -> None:
    a, b, x, blueprint = EXHIBITS[name].model(0), EXHIBITS[name].model(1), EXHIBITS[name].inputs(), blueprint_of(name)
    first = elastic(blueprint)[0]
    for method in METHODS:
        fused = pf.fuse([a, b], x, alpha={first: 1.0, "*": 0.2}, method=method, blueprint=blueprint)
        assert fused.plan[first].width == 2 * blueprint[first].width
        assert (fused.plan[first].fused, fused.plan[first].deleted, fused.plan[first].combined) == (0, 0, 0)
    pruned = pf.prune(a, x, keep={first: 0.5}, blueprint=blueprint)
    widths = {s: pruned.plan[s].width for s in elastic(blueprint)}
    assert widths == {s: round(0.5 * blueprint[s].width) if s == first else blueprint[s].width for s in widths}


@everything
@methods
def test_sources_stay_and_results_repeat(name: str, method: str) -> None:
    models, x = [EXHIBITS[name].model(0).train(), EXHIBITS[name].model(1)], EXHIBITS[name].inputs()
    before = [snapshot(m) for m in models]
    options = {"method": method, "data": data_of(name), "features": "both", "blueprint": blueprint_of(name)}
    first = pf.fuse(models, x, alpha=0.4, **options).model
    torch.manual_seed(1)
    second = pf.fuse(models, x, alpha=0.4, **options).model
    pf.prune(models[0], x, keep=0.5, **options)
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))
    assert identical(snapshot(first), second)
    assert all(m.training for m in models[0].modules())


def test_a_grouped_convolution_loses_whole_groups() -> None:
    exhibit = ZOO["grouped"]
    model, x = exhibit.model(0), exhibit.inputs()
    result = pf.prune(model, x, keep={"enter.0": 0.5}, data=data_of("grouped"))
    assert result.model.grouped.groups == 2
    assert result.model.grouped.weight.shape == (4, 3, 3, 3)


@pytest.mark.parametrize("keep", [0.25, 0.5, 0.75])
def test_a_single_group_stays_one(keep: float) -> None:
    model = randomised(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(1, 8), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1)), 0)
    x = torch.randn(2, 3, 6, 6)
    pruned = pf.prune(model, x, keep=keep).model
    assert pruned(x).shape == model(x).shape
    assert pruned[1].num_groups == 1
    assert pruned[2].num_channels // pruned[2].num_groups == 4
