"""Streamed correlations against NumPy on everything at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.features import Activations, Need
from partialfusion.features.moments import Moments
from zoo import ZOO, Exhibit, ResNet, ThereAndBack, Tied, error, permuted_twin, randomised


def recorded(models: list[nn.Module], blueprint: pf.Blueprint, data: list[Tensor], spaces: list[str]) -> Activations:
    return Activations.record(models, [blueprint] * len(models), [Inputs.of(x) for x in data], spaces, [Need("pre")])


def outputs(model: nn.Module, modules: list[nn.Module], data: list[Tensor]) -> list[np.ndarray]:
    """(samples × channels) of every module, all batches together."""
    kept: list[list[Tensor]] = [[] for _ in modules]
    hooks = [
        m.register_forward_hook(lambda _m, _i, out, k=k: kept[k].append(out.detach())) for k, m in enumerate(modules)
    ]
    with torch.no_grad():
        for x in data:
            model(x)
    for hook in hooks:
        hook.remove()
    return [torch.cat(found).movedim(1, -1).flatten(0, -2).double().numpy() for found in kept]


def test_costs_are_one_minus_the_mean_correlation_over_all_writers() -> None:
    a, b = randomised(ResNet(6), 0), randomised(ResNet(6), 1)
    data = [torch.randn(n, 3, 8, 8) * 3 + 1 for n in (5, 2, 7)]
    blueprint = pf.trace(b, data[0])
    costs = recorded([a, b], blueprint, data, [s.name for s in blueprint]).costs("pre", 0)
    found = []
    for ours, theirs in zip(
        outputs(a, [a.conv1, a.layer1[0].conv2, a.layer1[1].conv2], data),
        outputs(b, [b.conv1, b.layer1[0].conv2, b.layer1[1].conv2], data),
        strict=True,
    ):
        n = ours.shape[1]
        found.append(1 - np.corrcoef(ours.T, theirs.T)[:n, n:])
    assert costs["conv1"] == pytest.approx(np.mean(found, 0), abs=1e-5)


def test_squared_distances_are_those_of_the_activations() -> None:
    exhibit: Exhibit = ZOO["mlp"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    blueprint = pf.trace(models[1], x)
    free = [s.name for s in blueprint if s.kind == "elastic"]
    data = [exhibit.inputs(s) for s in (1, 2, 3)]
    costs = recorded(models, blueprint, data, free).costs("pre", 0, squared=True)
    layers = [next(m for m in model.modules() if isinstance(m, torch.nn.Linear)) for model in models]
    ours, theirs = (outputs(model, [layer], data)[0] for model, layer in zip(models, layers, strict=True))
    expected = ((ours[:, :, None] - theirs[:, None, :]) ** 2).mean(0)
    assert costs[free[0]] == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["mlp", "vgg-bn"])
def test_a_twin_is_matched_by_distances(name: str) -> None:
    exhibit: Exhibit = ZOO[name]
    model, x = exhibit.model(0), exhibit.inputs()
    twin = permuted_twin(model, x, 4)
    fused = pf.fuse([twin, model], x, alpha=0.0, method="partial-ot", features="distances", data=[exhibit.inputs(1)])
    assert fused.recipe.features == "distances"
    assert torch.allclose(fused.model(x), model(x), atol=1e-4)


def test_distances_are_for_matching() -> None:
    exhibit: Exhibit = ZOO["mlp"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    with pytest.raises(pf.OptionError, match="by distance already"):
        pf.fuse(models, x, method="cluster", features="distances", data=[x])
    with pytest.raises(pf.DataError, match="needs data"):
        pf.fuse(models, x, features="distances")


def test_moments_are_stable_far_from_zero_and_know_dead_channels() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(500, 4)) + 1e4, rng.normal(size=(500, 3)) - 1e4
    y[:, 1] = x[:, 2] - 2e4
    x[:, 0], y[:, 0] = 7.0, 3.0
    moments = Moments()
    for part in np.array_split(np.arange(500), 7):
        moments.add([torch.from_numpy(t[part].T).float()[:, None].contiguous() for t in (x, y)])
    found = moments.correlation(0, 1).numpy()
    assert found[1:, 1:] == pytest.approx(np.corrcoef(x[:, 1:].T, y[:, 1:].T)[:3, 3:], abs=2e-3)
    assert found[2, 1] == pytest.approx(1.0, abs=2e-3)
    assert (found[0, 0], *found[0, 1:], *found[1:, 0]) == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["shared", "mixer"])
def test_weights_used_twice_or_by_function_are_seen(name: str) -> None:
    exhibit: Exhibit = ZOO[name]
    model, x = exhibit.model(0), exhibit.inputs()
    twin = permuted_twin(model, x, 4)
    blueprint = pf.trace(model, x)
    free = [s.name for s in blueprint if s.kind == "elastic"]
    costs = recorded([twin, model], blueprint, [exhibit.inputs(1)], free).costs("pre", 0)
    assert set(costs) == set(free)
    for cost in costs.values():
        assert cost.min(0) == pytest.approx(0.0, abs=1e-5)


def test_data_forms_give_the_same_result() -> None:
    exhibit = ZOO["vgg-bn"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    data = [exhibit.inputs(s) for s in range(3)]
    forms = [data, tuple(data), iter(data), [(d, torch.zeros(4)) for d in data], [[d, 0] for d in data]]
    results = [pf.fuse(models, x, alpha=0.3, data=form).model for form in forms]
    for other in results[1:]:
        assert all(torch.equal(p, q) for p, q in zip(results[0].parameters(), other.parameters(), strict=True))
        assert all(torch.equal(p, q) for p, q in zip(results[0].buffers(), other.buffers(), strict=True))


def test_auto_takes_activations_when_there_is_data() -> None:
    exhibit = ZOO["mlp"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    assert pf.fuse(models, x).recipe.features == "weights"
    assert pf.fuse(models, x, data=[x]).recipe.features == "activations"


@pytest.mark.parametrize("build", [lambda: Tied(8), lambda: Tied(10), ThereAndBack], ids=["back", "square", "twice"])
@pytest.mark.parametrize("site", ["pre", "post"])
def test_a_weight_with_two_uses_shows_its_channels_in_the_right_one(build: Callable[[], nn.Module], site: str) -> None:
    model, data = randomised(build(), 0), [torch.randn(40, 10, generator=torch.Generator().manual_seed(0))]
    blueprint = pf.trace(model, data[0])
    space = next(s for s in blueprint if any(b.parameter == "weight" and b.axis == 0 for b in s.bindings))
    found = Activations.record([model] * 2, [blueprint] * 2, map(Inputs.of, data), [space.name], [Need(site)])
    x = data[0] if isinstance(model, Tied) else torch.relu(model.first(data[0]))
    computed = x @ model.weight.T + (model.bias if isinstance(model, Tied) else 0.0)
    wanted = np.corrcoef((computed if site == "pre" else torch.relu(computed)).detach().double().numpy().T)
    assert found.costs(site, 0)[space.name] == pytest.approx(1 - wanted, abs=1e-5)
    twin = permuted_twin(model, data[0], 3, blueprint)
    fused = pf.fuse([twin, model], data[0], alpha=0.0, data=data, site=site, blueprint=blueprint)
    assert error(fused.model(data[0]), model(data[0])) < 1e-5
    assert fused.unseen == ()
