"""Repair: fused channels vary as their sources do, and nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion_study.networks import mlp
from zoo import ZOO, ThereAndBack, Tied, error, identical, permuted_twin, randomised, snapshot

X = torch.randn(8, 10, generator=torch.Generator().manual_seed(1))
DATA = list(torch.randn(300, 10, generator=torch.Generator().manual_seed(4)).split(120))


def pair(bias: bool = True) -> list[nn.Module]:
    torch.manual_seed(0)
    return [mlp(10, 16, 14, 12, 5, bias=bias).eval() for _ in range(2)]


def layers(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def spread(model: nn.Module, layer: str, data: Sequence[Tensor] = DATA) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of what a layer computes on the data."""
    found: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_hook(lambda module, args, output: found.append(output.double()))
    with torch.no_grad():
        model(torch.cat(data))
    hook.remove()
    rows = found[0].movedim(1, -1).flatten(0, -2)
    return rows.mean(0), rows.std(0, correction=0)


def mixed(
    result: pf.Fusion,
    models: Sequence[nn.Module],
    layer: str,
    data: Sequence[Tensor] = DATA,
    space: str | None = None,
    per_unit: int = 1,
) -> tuple[Tensor, Tensor]:
    """The weighted means of the sources' means and standard deviations."""
    each = torch.eye(per_unit, dtype=torch.float64)
    writes = [torch.kron(torch.from_numpy(p.write_matrix()), each) for p in result.plan[space or layer].pairs]
    spreads = [spread(m, layer, data) for m in models]
    mean, std = (sum(w @ s[k] for w, s in zip(writes, spreads, strict=True)) for k in range(2))
    return torch.as_tensor(mean), torch.as_tensor(std)


def combined(result: pf.Fusion, layer: str) -> np.ndarray:
    return np.sum([(p.write_matrix() != 0).sum(1) for p in result.plan[layer].pairs], axis=0) > 1


@pytest.mark.parametrize("method", ["partial-ot", "cluster", "average"])
def test_fused_channels_get_the_mean_and_spread_of_their_sources(method: str) -> None:
    models = pair()
    alpha = 0.0 if method == "average" else 0.3
    result, before = (
        pf.fuse(models, X, alpha=alpha, method=method, data=DATA, norm=norm) for norm in ("repair", "recalibrate")
    )
    *hidden, last = layers(result.model)
    for layer in hidden:
        fused = torch.from_numpy(combined(result, layer))
        for found, wanted in zip(spread(result.model, layer), mixed(result, models, layer), strict=True):
            assert error(found[fused], wanted[fused]) < 1e-5
        weights, old = (r.model.get_submodule(layer).weight for r in (result, before))
        assert torch.equal(weights[~fused], old[~fused]), "isolated channels stay"
        assert not torch.equal(weights[fused], old[fused])
    assert torch.equal(result.model.get_submodule(last).weight, before.model.get_submodule(last).weight)


def test_convolutions_are_repaired_over_all_positions() -> None:
    torch.manual_seed(0)

    def network() -> nn.Module:
        convolutions = nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3, stride=2), nn.ReLU()
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 3)).eval()

    models, data = [network() for _ in range(2)], list(torch.randn(40, 2, 8, 8).split(16))
    result = pf.fuse(models, data[0], alpha=0.2, data=data)
    for layer in ("0", "2", "5"):
        fused = torch.from_numpy(combined(result, layer))
        for found, wanted in zip(spread(result.model, layer, data), mixed(result, models, layer, data), strict=True):
            assert error(found[fused], wanted[fused]) < 1e-5


# Layers whose channels, or groups of them, are those that they read, and how many channels they write for each unit.
IN_GROUPS: dict[str, tuple[nn.Module, int]] = {
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6), 1),
    "two channels for each": (nn.Conv2d(6, 12, 3, groups=6), 2),
    "grouped": (nn.Conv2d(6, 9, 3, groups=3), 3),
    "transposed depthwise": (nn.ConvTranspose2d(6, 6, 3, stride=2, padding=1, groups=6), 1),
    "transposed, two channels for each": (nn.ConvTranspose2d(6, 12, 2, groups=6), 2),
    "transposed in groups": (nn.ConvTranspose2d(6, 9, 3, stride=2, output_padding=1, groups=3), 3),
}
IMAGES = list(torch.randn(24, 2, 6, 6, generator=torch.Generator().manual_seed(5)).split(16))


def with_groups(kind: str) -> list[nn.Module]:
    """Two networks without norms: a convolution, the layer in groups, and a linear layer."""

    def network(seed: int) -> nn.Module:
        layer = copy.deepcopy(IN_GROUPS[kind][0])
        end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(layer.out_channels, 3)
        return randomised(nn.Sequential(nn.Conv2d(2, 6, 3), nn.Tanh(), layer, nn.Tanh(), *end), seed)

    return [network(0), network(1)]


@cache
def traced(kind: str) -> pf.Blueprint:
    return pf.trace(with_groups(kind)[-1], IMAGES[0])


def fused_in_both_ways(kind: str, models: Sequence[nn.Module], data: Sequence[Tensor] | None) -> list[pf.Fusion]:
    """Repaired and not."""
    options = {"alpha": 0.34, "data": data, "blueprint": traced(kind)}
    return [pf.fuse(models, IMAGES[0], norm=norm, **options) for norm in ("repair", "analytic")]


@pytest.mark.parametrize("kind", IN_GROUPS)
def test_layers_in_groups_are_repaired_a_channel_at_a_time(kind: str) -> None:
    models, per_unit = with_groups(kind), IN_GROUPS[kind][1]
    result, plain = fused_in_both_ways(kind, models, IMAGES)
    fused = torch.from_numpy(combined(result, "0")).repeat_interleave(per_unit)
    assert fused.any()
    assert not fused.all()
    wanted = mixed(result, models, "2", IMAGES, "0", per_unit)
    for found, old, goal in zip(*(spread(r.model, "2", IMAGES) for r in (result, plain)), wanted, strict=True):
        assert error(found[fused], goal[fused]) < 1e-5
        assert error(old[fused], goal[fused]) > 1e-3
    assert torch.equal(result.model[2].bias[~fused], plain.model[2].bias[~fused]), "isolated channels stay"
    assert result.unrepaired == ()


@pytest.mark.parametrize("kind", IN_GROUPS)
def test_without_data_layers_in_groups_get_the_length_of_their_sources(kind: str) -> None:
    models = with_groups(kind)
    result, plain = fused_in_both_ways(kind, models, None)
    pairs, units = result.plan["0"].pairs, result.plan["0"].width

    def lengths(model: nn.Module, units: int) -> Tensor:
        return model[2].weight.detach().double().unflatten(0, (units, -1)).flatten(1).norm(dim=1)

    parts = [torch.from_numpy(p.write_matrix()) @ lengths(m, p.sources) for m, p in zip(models, pairs, strict=True)]
    found, old, wanted = lengths(result.model, units), lengths(plain.model, units), torch.stack(parts).sum(0)
    fused = torch.from_numpy(combined(result, "0"))
    assert error(found[fused], wanted[fused]) < 1e-6
    assert error(old[fused], wanted[fused]) > 0.1
    assert torch.equal(found[~fused], old[~fused]), "isolated channels stay"
    assert result.unrepaired == ()


@pytest.mark.parametrize("data", [IMAGES, None], ids=["data", "weights"])
@pytest.mark.parametrize("kind", IN_GROUPS)
def test_twins_with_layers_in_groups_are_the_model(kind: str, data: list[Tensor] | None) -> None:
    model, x = with_groups(kind)[0], IMAGES[0]
    for other in (model, permuted_twin(model, x, seed=3, blueprint=traced(kind))):
        result, plain = fused_in_both_ways(kind, [other, model], data)
        assert identical(snapshot(plain.model), result.model)
        assert error(result.model(x), model(x)) < 1e-5


class Positions(nn.Module):
    """A parameter that is an activation: no layer computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(10, 8), nn.Linear(8, 3)
        self.position = nn.Parameter(torch.zeros(1, 4, 8))
        self.scale = nn.Parameter(torch.ones(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.scale * (self.a(x[:, None]) + self.position)).mean(1))


@pytest.mark.parametrize("data", [DATA, None], ids=["data", "weights"])
def test_what_cannot_be_repaired_is_named(data: list[Tensor] | None, caplog: pytest.LogCaptureFixture) -> None:
    models = [randomised(Positions(), seed) for seed in (0, 1)]
    result = pf.fuse(models, X, alpha=0.25, data=data, norm="repair")
    assert result.unrepaired == ("position",)
    assert "position not repaired" in caplog.text
    assert "not repaired, used in several ways or by no layer: position" in str(result.summary())
    assert pf.fuse(models, X, alpha=0.25, data=data, norm="analytic").unrepaired == ()
    assert pf.fuse(models, X, alpha=1.0, data=data, norm="repair").unrepaired == ()


class TiedWords(nn.Module):
    """One weight is the embedding and the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 9, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        return self.last(x + torch.relu(self.layer(x)))


WORDS = torch.randint(0, 9, (8, 4), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("with_data", [True, False], ids=["data", "weights"])
@pytest.mark.parametrize(
    ("build", "x", "tied"),
    [
        (lambda: Tied(8), X, "weight"),
        (lambda: Tied(10), X, "weight"),
        (lambda: Tied(14), X, "weight"),
        (ThereAndBack, X, "weight"),
        (TiedWords, WORDS, "embedding.weight"),
    ],
    ids=["narrow", "square", "wide", "there and back", "words"],
)
def test_a_weight_with_two_uses_is_named_and_stays(
    build: Callable[[], nn.Module], x: Tensor, tied: str, with_data: bool
) -> None:
    models = [randomised(build(), seed) for seed in (0, 1)]
    options = {"alpha": 0.0, "data": [x] if with_data else None}
    result, plain = (pf.fuse(models, x, norm=norm, **options) for norm in ("repair", "analytic"))
    assert result.unrepaired == (tied,)
    assert torch.equal(result.model.get_parameter(tied), plain.model.get_parameter(tied))


def test_without_biases_mean_and_spread_come_nearer() -> None:
    models = pair(bias=False)
    after, before = (pf.fuse(models, X, alpha=0.0, data=DATA, norm=norm) for norm in ("repair", "recalibrate"))
    first = layers(after.model)[0]
    (m, s), (mean, std) = spread(before.model, first), mixed(after, models, first)
    ratio = (after.model.get_submodule(first).weight / before.model.get_submodule(first).weight)[:, 0].double()
    steps = torch.linspace(0.2, 3.0, 2801, dtype=torch.float64)[:, None]
    nearest = steps[((steps * m - mean).square() + (steps * s - std).square()).argmin(0), 0]
    assert error(ratio, nearest) < 1e-3


def test_pruned_networks_vary_as_they_did() -> None:
    model = pair()[0]
    for method in ("cluster", "magnitude"):
        result = pf.prune(model, X, keep=0.5, method=method, data=DATA)
        assert result.recipe.norm == "repair"
        for layer in layers(model)[:-1]:
            for found, wanted in zip(spread(result.model, layer), mixed(result, [model], layer), strict=True):
                assert error(found, wanted) < 1e-5


@pytest.mark.parametrize("data", [DATA, None], ids=["data", "weights"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_a_model_and_its_twin_are_the_model(alpha: float, data: list[Tensor] | None) -> None:
    exhibit = ZOO["mlp"]
    model, x = exhibit.model(0), exhibit.inputs()
    options = {"alpha": alpha, "data": data, "blueprint": exhibit.blueprint}
    for other in (model, permuted_twin(model, x, seed=3, blueprint=exhibit.blueprint)):
        result, plain = (pf.fuse([other, model], x, norm=norm, **options) for norm in ("repair", "analytic"))
        assert identical(snapshot(plain.model), result.model)
        assert error(result.model(x), model(x)) < 1e-5


@pytest.mark.parametrize("name", ["mlp-relu-no-bias", "vgg", "shared"])
def test_twins_of_other_kinds_are_the_model(name: str) -> None:
    exhibit = ZOO[name]
    model, x = exhibit.model(0), exhibit.inputs()
    data = [exhibit.inputs(seed) for seed in range(3)]
    twin = permuted_twin(model, x, seed=3, blueprint=exhibit.blueprint)
    result = pf.fuse([twin, model], x, alpha=0.25, data=data, norm="repair", blueprint=exhibit.blueprint)
    assert error(result.model(x), model(x)) < 1e-5


@pytest.mark.parametrize("data", [DATA, None], ids=["data", "weights"])
def test_the_ensemble_is_the_ensemble(data: list[Tensor] | None) -> None:
    models = pair()
    result = pf.fuse(models, X, alpha=1.0, data=data, norm="repair", check=False)
    assert identical(snapshot(pf.fuse(models, X, alpha=1.0).model), result.model)
    assert error(result.model(X), (models[0](X) + models[1](X)) / 2) < 1e-6


def test_from_weights_alone_rows_get_the_length_of_their_sources() -> None:
    models = pair()
    result = pf.fuse(models, X, alpha=0.3, norm="repair")
    plain = pf.fuse(models, X, alpha=0.3)
    first, second, *_ = layers(result.model)
    lengths = [m.get_submodule(first).weight.detach().double().norm(dim=1) for m in models]
    wanted = sum(torch.from_numpy(p.write_matrix()) @ n for p, n in zip(result.plan[first].pairs, lengths, strict=True))
    fused = torch.from_numpy(combined(result, first))
    found = result.model.get_submodule(first).weight.double().norm(dim=1)
    assert error(found[fused], torch.as_tensor(wanted)[fused]) < 1e-6
    for layer in (first, second):
        weights, old = (r.model.get_submodule(layer).weight for r in (result, plain))
        fused = torch.from_numpy(combined(result, layer))
        assert torch.equal(weights[~fused], old[~fused])
        assert not torch.equal(weights[fused], old[fused])


def test_it_is_the_default_with_data_and_without_norms() -> None:
    models = pair()
    assert pf.fuse(models, X, data=DATA, check=False).recipe.norm == "repair"
    assert pf.fuse(models, X, check=False).recipe.norm == "analytic"
    torch.manual_seed(0)
    normed = [nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval() for _ in range(2)]
    assert pf.fuse(normed, X, data=DATA, check=False).recipe.norm == "recalibrate"
    layered = [nn.Sequential(nn.Linear(10, 8), nn.LayerNorm(8), nn.Linear(8, 3)).eval() for _ in range(2)]
    assert pf.fuse(layered, X, data=DATA, check=False).recipe.norm == "recalibrate"


def test_behind_batch_norms_only_the_other_layers_are_repaired() -> None:
    torch.manual_seed(0)

    def network() -> nn.Module:
        head = nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
        return nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), *head).eval()

    models = [network() for _ in range(2)]
    result, plain = (pf.fuse(models, X, alpha=0.0, data=DATA, norm=norm) for norm in ("repair", "recalibrate"))
    assert torch.equal(result.model[0].weight, plain.model[0].weight)
    assert torch.equal(result.model[1].running_var, plain.model[1].running_var)
    assert error(spread(result.model, "3")[1], mixed(result, models, "3")[1]) < 1e-5
