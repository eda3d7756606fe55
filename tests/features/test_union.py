"""Features of the union against NumPy on everything at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.features import Activations, Need, TracedModel, UnionFeatures
from zoo import ResNet, mlp, randomised, vgg


def seen(model: nn.Module, data: list[Tensor], module: nn.Module, *, given: bool) -> np.ndarray:
    """(channels × samples) of what a module is given or computes."""
    kept = []
    hook = module.register_forward_hook(lambda _m, i, out: kept.append((i[0] if given else out).detach().clone()))
    with torch.no_grad():
        for x in data:
            model(x)
    hook.remove()
    return torch.cat(kept).movedim(1, -1).flatten(0, -2).double().numpy().T


def squared(x: np.ndarray) -> np.ndarray:
    return ((x[:, None] - x[None]) ** 2).mean(-1) / (x**2).mean()


def features(models: list[nn.Module], data: list[Tensor], site: str) -> UnionFeatures:
    blueprint = pf.trace(models[0], data[0])
    names = [s.name for s in blueprint if s.kind == "elastic"]
    needs = [Need(site, within=True)]
    found = Activations.record(models, [blueprint] * len(models), [Inputs.of(x) for x in data], names, needs)
    return UnionFeatures([TracedModel.of(m, blueprint) for m in models], [], found.union(site), "activations")


@pytest.mark.parametrize("site", ["pre", "post"])
def test_distances_and_covariances_of_two_models(site: str) -> None:
    models = [randomised(mlp(), s) for s in (0, 1)]
    data = [torch.randn(n, 10) * 2 + 1 for n in (30, 7, 50)]
    found = features(models, data, site)
    given = site == "post"
    union = np.concatenate([seen(m, data, m[2 if given else 0], given=given) for m in models])
    assert found.squared("0") == pytest.approx(squared(union), abs=1e-6)
    cov = np.cov(union, bias=True)
    assert found.covariance("0") == pytest.approx(cov / np.diag(cov).mean(), abs=1e-6)
    assert found.deviations("0") == pytest.approx(union.std(1) / np.sqrt(union.var(1).mean()), abs=1e-6)


def test_a_residual_space_counts_all_its_places() -> None:
    model = randomised(ResNet(6), 0)
    data = [torch.randn(3, 3, 8, 8)]
    found = features([model], data, "pre")
    writers = [model.conv1, model.layer1[0].conv2, model.layer1[1].conv2]
    places = [squared(seen(model, data, w, given=False)) for w in writers]
    assert found.squared("conv1") == pytest.approx(np.mean(places, 0), abs=1e-5)
    read = features([model], data, "post")
    readers = [model.layer1[0].conv1, model.layer1[1].conv1, model.layer2[0].conv1, model.layer2[0].shortcut[0]]
    places = [squared(seen(model, data, r, given=True)) for r in readers]
    assert read.squared("conv1") == pytest.approx(np.mean(places, 0), abs=1e-5)


def test_a_flattened_map_is_read_position_by_position() -> None:
    model = randomised(vgg(norm=False), 0)
    data = [torch.randn(5, 3, 8, 8)]
    found = features([model], data, "post")
    name = list(found.moments)[2]
    flat = next(m for m in model if isinstance(m, nn.Linear))
    maps = seen(model, data, flat, given=True).reshape(16, 4, -1).reshape(16, -1)
    assert found.squared(name) == pytest.approx(squared(maps), abs=1e-6)


def test_norms_of_incoming_and_outgoing_weights() -> None:
    models = [randomised(mlp(), s) for s in (0, 1)]
    blueprint = pf.trace(models[0], torch.randn(2, 10))
    found = UnionFeatures([TracedModel.of(m, blueprint) for m in models], [], {}, "weights")
    rows = np.concatenate([np.c_[m[2].weight.detach().numpy(), m[2].bias.detach().numpy()] for m in models])
    norm = np.linalg.norm(rows, axis=1)
    assert found.norms("2", outgoing=False) == pytest.approx(norm / np.sqrt((norm**2).mean()), rel=1e-5)
    cols = np.concatenate([m[5].weight.detach().numpy().T for m in models])
    norm = np.linalg.norm(cols, axis=1)
    assert found.norms("2", outgoing=True) == pytest.approx(norm / np.sqrt((norm**2).mean()), rel=1e-5)
