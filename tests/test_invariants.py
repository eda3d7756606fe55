"""What must hold for every network: the extremes are exact, the sources stay, nothing depends on chance."""

from __future__ import annotations

import pytest
import torch

import partialfusion as pf
from zoo import STIFF, ZOO, Exhibit, error, identical, permuted_twin, snapshot

TOLERANCE = 1e-5
zoo = pytest.mark.parametrize("exhibit", ZOO.values(), ids=ZOO.keys())
everything = pytest.mark.parametrize("exhibit", [*ZOO.values(), *STIFF.values()], ids=[*ZOO, *STIFF])


@everything
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("mix", [(0.5, 0.5), (0.2, 0.8), (1.0, 0.0)])
def test_a_model_fused_with_itself_is_itself(exhibit: Exhibit, alpha: float, mix: tuple[float, float]) -> None:
    model, x = exhibit.model(0), exhibit.inputs()
    fused = pf.fuse([model, model], x, alpha=alpha, mix=mix, blueprint=exhibit.blueprint)
    assert error(fused.model(x), model(x)) < TOLERANCE
    assert fused.plan.converged


@everything
@pytest.mark.parametrize("method", ["permutation", "ot", "partial-ot"])
@pytest.mark.parametrize("align", ["fixed-point", "greedy"])
def test_a_permuted_twin_is_recovered(exhibit: Exhibit, method: str, align: str) -> None:
    model, x = exhibit.model(0), exhibit.inputs()
    twin = permuted_twin(model, x, seed=5, blueprint=exhibit.blueprint)
    assert error(twin(x), model(x)) < TOLERANCE
    fused = pf.fuse([twin, model], x, alpha=0.0, method=method, align=align, blueprint=exhibit.blueprint)
    assert error(fused.model(x), model(x)) < TOLERANCE
    assert {n: p.shape for n, p in fused.model.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}


@everything
def test_a_permuted_twin_is_recovered_from_activations(exhibit: Exhibit) -> None:
    model, x = exhibit.model(0), exhibit.inputs()
    twin = permuted_twin(model, x, seed=5, blueprint=exhibit.blueprint)
    data = [exhibit.inputs(seed) for seed in range(1, 4)]
    for features in ("activations", "both"):
        options = {"data": data, "features": features, "norm": "analytic", "blueprint": exhibit.blueprint}
        fused = pf.fuse([twin, model], x, alpha=0.0, **options)
        assert error(fused.model(x), model(x)) < TOLERANCE


@zoo
@pytest.mark.parametrize("mix", [(0.5, 0.5), (0.9, 0.1)])
def test_alpha_one_is_the_ensemble(exhibit: Exhibit, mix: tuple[float, float]) -> None:
    a, b, x = exhibit.model(0), exhibit.model(1), exhibit.inputs()
    for convention in ("value", "mass"):
        options = {"mix": mix, "convention": convention, "blueprint": exhibit.blueprint}
        fused = pf.fuse([a, b], x, alpha=1.0, **options)
        assert error(fused.model(x), mix[0] * a(x) + mix[1] * b(x)) < TOLERANCE
        assert all(s.kind == "elastic" or "output" in s.reasons for s in fused.blueprint)


@zoo
def test_three_models(exhibit: Exhibit) -> None:
    models, x = [exhibit.model(seed) for seed in range(3)], exhibit.inputs()
    mix = (0.2, 0.5, 0.3)
    ensemble = sum(w * m(x) for w, m in zip(mix, models, strict=True))
    options = {"mix": mix, "blueprint": exhibit.blueprint}
    assert error(pf.fuse(models, x, alpha=1.0, **options).model(x), ensemble) < TOLERANCE
    same = [models[0], *(permuted_twin(models[0], x, seed, exhibit.blueprint) for seed in (1, 2))]
    assert error(pf.fuse(same, x, alpha=0.0, **options).model(x), models[0](x)) < TOLERANCE
    for alpha in (0.25, 0.6):
        itself = pf.fuse([models[0]] * 3, x, alpha=alpha, **options)
        assert error(itself.model(x), models[0](x)) < TOLERANCE
        for space in itself.blueprint:
            extra = 2 * round(alpha * space.width) if space.kind == "elastic" else 0
            assert itself.plan[space.name].width == space.width + extra


@everything
@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_one_is_that_model(exhibit: Exhibit, share: int) -> None:
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    mix = [0.0, 0.0]
    mix[share] = 1.0
    for alpha in (0.0, 0.4, 1.0):
        fused = pf.fuse(models, x, alpha=alpha, mix=mix, blueprint=exhibit.blueprint)
        assert error(fused.model(x), models[share](x)) < TOLERANCE


@zoo
def test_unequal_widths(exhibit: Exhibit) -> None:
    x = exhibit.inputs()
    a, b = exhibit.model(0, exhibit.widths[0]), exhibit.model(1, exhibit.widths[1])
    for models in ([a, b], [b, a]):
        blueprint = pf.trace(models[1], x)
        for convention in ("value", "mass"):
            options = {"convention": convention, "blueprint": blueprint}
            ensemble = pf.fuse(models, x, alpha=1.0, mix=(0.3, 0.7), **options)
            assert error(ensemble.model(x), 0.3 * models[0](x) + 0.7 * models[1](x)) < TOLERANCE
            small = pf.fuse(models, x, alpha=0.0, **options)
            shapes = {n: p.shape for n, p in models[1].named_parameters()}
            assert {n: p.shape for n, p in small.model.named_parameters()} == shapes
            middle = pf.fuse(models, x, alpha=0.5, **options)
            assert torch.isfinite(middle.model(x)).all()
            for space in middle.blueprint:
                pairs = middle.plan[space.name].pairs
                if convention == "value":
                    assert all(p.read_matrix().sum(1) == pytest.approx(1.0) for p in pairs)
                    if space.kind == "elastic":
                        assert pairs[0].targets == pairs[1].sources + round(0.5 * pairs[0].sources)
        end = pf.fuse(models, x, alpha=0.4, mix=(0.0, 1.0), blueprint=blueprint)
        assert error(end.model(x), models[1](x)) < TOLERANCE


@everything
def test_sources_stay_bit_for_bit(exhibit: Exhibit) -> None:
    models, x = [exhibit.model(0).train(), exhibit.model(1)], exhibit.inputs()
    before = [snapshot(m) for m in models]
    modes = [[m.training for m in model.modules()] for model in models]
    data = [exhibit.inputs(seed) for seed in range(3)]
    pf.fuse(models, x, alpha=0.4)
    pf.fuse(models, x, alpha=0.4, data=data, features="both", blueprint=exhibit.blueprint)
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))
    assert modes == [[m.training for m in model.modules()] for model in models]


@everything
def test_results_do_not_depend_on_global_random_state(exhibit: Exhibit) -> None:
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.random.get_rng_state()
        results.append(pf.fuse(models, x, alpha=0.4, seed=3).model)
        assert torch.equal(torch.random.get_rng_state(), state)
    assert identical(snapshot(results[0]), results[1])


@everything
def test_channel_counts(exhibit: Exhibit) -> None:
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    for alpha in (0.0, 0.2, 0.45, 0.8, 1.0):
        fused = pf.fuse(models, x, alpha=alpha, blueprint=exhibit.blueprint)
        for space in fused.blueprint:
            n, r = space.width, fused.plan[space.name]
            extra = space.step * round(alpha * space.steps) if space.kind == "elastic" else 0
            assert r.width == n + extra == r.fused + sum(r.isolated)
            for pair in r.pairs:
                assert pair.read_matrix().sum(1) == pytest.approx(1.0)
            assert sum(p.write_matrix().sum(1) for p in r.pairs) == pytest.approx(1.0)
