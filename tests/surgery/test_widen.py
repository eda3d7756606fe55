"""One model at a fused model's widths: copies keep the function, random channels start as a layer does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.errors import MismatchError, OptionError
from partialfusion.surgery.widen import widen_net2net, widen_random
from zoo import STIFF, ZOO, Exhibit, ResNet, error, identical, mlp, randomised, snapshot

TOLERANCE = 1e-5
zoo = pytest.mark.parametrize("exhibit", ZOO.values(), ids=ZOO.keys())
everything = pytest.mark.parametrize("exhibit", [*ZOO.values(), *STIFF.values()], ids=[*ZOO, *STIFF])
both = pytest.mark.parametrize("widen", [widen_net2net, widen_random])

Widen = Callable[..., nn.Module]


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@everything
@pytest.mark.parametrize("models", [2, 3])
def test_net2net_keeps_the_function_at_the_widths_of_a_fusion(exhibit: Exhibit, models: int) -> None:
    sources, x = [exhibit.model(seed) for seed in range(models)], exhibit.inputs()
    fused = pf.fuse(sources, x, alpha=0.4)
    before = snapshot(sources[0])
    for widths in (fused, fused.plan, {s.name: fused.plan[s.name].width for s in fused.blueprint}):
        wide = widen_net2net(sources[0], x, widths, seed=3, blueprint=fused.blueprint)
        assert type(wide) is type(sources[0])
        assert shapes(wide) == shapes(fused.model)
        for seed in (0, 1):
            inputs = exhibit.inputs(seed)
            assert error(wide(inputs), sources[0](inputs)) < TOLERANCE
    assert identical(before, sources[0])


@zoo
def test_net2net_keeps_the_function_when_spaces_are_doubled_or_more(exhibit: Exhibit) -> None:
    model, x = exhibit.model(0), exhibit.inputs()
    blueprint = pf.trace(model, x)
    elastic = [s for s in blueprint if s.kind == "elastic"]
    for factor in (1, 2, 4):
        widths = {s.name: factor * s.width + (k if factor > 1 else 0) for k, s in enumerate(elastic)}
        wide = widen_net2net(model, x, widths, seed=factor)
        assert error(wide(x), model(x)) < TOLERANCE
        if factor == 1:
            assert identical(snapshot(model), wide)


def test_added_channels_are_copies_with_their_statistics() -> None:
    model, x = randomised(ResNet(8), 0), torch.randn(4, 3, 8, 8)
    wide = widen_net2net(model, x, {"conv1": 20, "layer1.0.conv1": 13}, seed=1)
    kernels = model.conv1.weight.detach()
    source = [int((kernels == k).all((1, 2, 3)).nonzero()) for k in wide.conv1.weight.detach()]
    assert source[:8] == list(range(8))
    assert len(set(source[8:])) > 1
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(getattr(wide.bn1, name), getattr(model.bn1, name)[source])
    copies = torch.bincount(torch.tensor(source)).float()
    read = wide.layer2[0].shortcut[0].weight.detach()
    expected = model.layer2[0].shortcut[0].weight.detach()[:, source] / copies[source].view(1, -1, 1, 1)
    assert torch.allclose(read, expected)
    model.train(), wide.train()
    assert error(wide(x), model(x)) < 1e-4


def test_noise_sets_copies_apart_and_nothing_else() -> None:
    model, x = randomised(mlp(32), 0), torch.randn(64, 10)
    exact = widen_net2net(model, x, {"0": 48}, seed=2)
    noisy = widen_net2net(model, x, {"0": 48}, seed=2, noise=0.01)
    difference = (noisy[0].weight - exact[0].weight).detach()
    assert torch.equal(difference[:32], torch.zeros(32, 10))
    scale = float(exact[0].weight.detach().square().mean().sqrt())
    assert float(difference[32:].std()) == pytest.approx(0.01 * scale, rel=0.2)
    assert torch.equal(noisy[2].weight[:, :32], exact[2].weight[:, :32])
    assert not torch.equal(noisy[2].weight[:, 32:], exact[2].weight[:, 32:])
    assert 1e-5 < error(noisy(x), model(x)) < 0.1
    for layer in (5, 7):
        assert torch.equal(noisy[layer].weight, exact[layer].weight)


@everything
def test_random_channels_leave_the_old_weights(exhibit: Exhibit) -> None:
    sources, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    fused = pf.fuse(sources, x, alpha=0.4)
    before = snapshot(sources[0])
    wide = widen_random(sources[0], x, fused, seed=3, blueprint=fused.blueprint)
    assert identical(before, sources[0])
    assert type(wide) is type(sources[0])
    assert shapes(wide) == shapes(fused.model)
    assert all(bool(torch.isfinite(t).all()) for t in wide.state_dict().values())
    assert error(wide(x), sources[0](x)) > 1e-3
    for name, tensor in sources[0].state_dict().items():
        kept = wide.state_dict()[name]
        for axis, bound in fused.blueprint.axes.get(name, {}).items():
            kept = kept.index_select(axis, old_places(fused, bound, name, axis))
        assert torch.equal(kept, tensor), name


def old_places(fused: pf.Fusion, bound: list[tuple[pf.Space, pf.AxisBinding]], name: str, axis: int) -> Tensor:
    """Where the positions of an axis of the narrow model sit in the wide one; those of no channel keep their order."""
    length = fused.blueprint.shapes[name][axis]
    wide = fused.model.state_dict()[name].shape[axis]
    places, free = torch.full((length,), -1), torch.ones(wide, dtype=torch.bool)
    for space, binding in bound:
        index = torch.from_numpy(fused.layout[space.name].index(name, axis))
        places[torch.from_numpy(binding.index)] = index[: space.width]
        free[index.flatten()] = False
    places[places < 0] = free.nonzero().flatten()
    return places


def entries(tensor: Tensor, rows: int, columns: int) -> Tensor:
    """What belongs to added rows or columns of a weight."""
    added = torch.ones(tensor.shape, dtype=torch.bool)
    added[:rows, :columns] = False
    return tensor.detach()[added]


def test_random_channels_start_as_their_layers_do() -> None:
    model = randomised(nn.Sequential(nn.Conv2d(3, 40, 3), nn.BatchNorm2d(40), nn.Conv2d(40, 9, 3)), 0)
    wide = widen_random(model, torch.randn(2, 3, 8, 8), {"0": 100}, seed=0)
    assert torch.equal(wide[0].weight[:40], model[0].weight)
    assert torch.equal(wide[2].weight[:, :40], model[2].weight)
    assert torch.equal(wide[2].bias, model[2].bias)
    for layer, fan_in, rows, columns in ((0, 27, 40, 3), (2, 900, 9, 40)):
        drawn = entries(wide[layer].weight, rows, columns)
        assert float(drawn.abs().max()) <= fan_in**-0.5
        assert float(drawn.std()) == pytest.approx((3 * fan_in) ** -0.5, rel=0.05)
    for name, start in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
        values = getattr(wide[1], name)
        assert torch.equal(values[:40], getattr(model[1], name))
        assert bool((values[40:] == start).all())


def test_parameters_without_a_layer_are_drawn_like_their_trained_entries() -> None:
    exhibit = ZOO["shared"]
    model, x = exhibit.model(0, 60), exhibit.inputs()
    wide = widen_random(model, x, {"first": 400}, seed=0)
    trained, drawn = model.scale.detach(), wide.scale.detach()[60:]
    assert torch.equal(wide.scale[:60], trained)
    assert float(drawn.mean()) == pytest.approx(float(trained.mean()), rel=0.1)
    assert float(drawn.std()) == pytest.approx(float(trained.std()), rel=0.1)
    assert bool((wide.act.weight[60:] == 0.25).all())


class Own(nn.Module):
    """Knows better than its layers how to start."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.a.weight, 7.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


def test_a_models_own_start_counts_before_its_layers() -> None:
    wide = widen_random(randomised(Own(), 0), torch.randn(3, 4), {"a": 9}, seed=0)
    assert bool((wide.a.weight[6:] == 7.0).all())
    assert not bool((wide.b.weight == 7.0).any())


@both
def test_only_the_seed_decides(widen: Widen) -> None:
    model, x = randomised(mlp(), 0), torch.randn(3, 10)
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    first = widen(model, x, {"0": 30}, seed=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(1)
    assert identical(snapshot(first), widen(model, x, {"0": 30}, seed=4))
    assert not identical(snapshot(first), widen(model, x, {"0": 30}, seed=5))


@both
def test_mode_precision_and_training(widen: Widen) -> None:
    model, x = randomised(mlp(), 0).double().train(), torch.randn(3, 10, dtype=torch.float64)
    wide = widen(model, x, {"0": 30, "2": 20}, seed=4)
    assert wide.training
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    wide(x).square().mean().backward()
    assert all(p.grad is not None for p in wide.parameters())


@both
def test_the_meta_device(widen: Widen) -> None:
    with torch.device("meta"):
        model, x = mlp(), torch.randn(3, 10)
    wide = widen(model, x, {"0": 30}, seed=0)
    assert wide[0].weight.is_meta
    assert wide[0].weight.shape == (30, 10)


@both
def test_widths_out_of_range(widen: Widen) -> None:
    model, x = randomised(mlp(), 0), torch.randn(3, 10)
    with pytest.raises(OptionError, match="no space 'hidden'; its spaces are 0, 2, 5, 7"):
        widen(model, x, {"hidden": 30}, seed=0)
    with pytest.raises(OptionError, match="11 channels for 0, which has 12"):
        widen(model, x, {"0": 11}, seed=0)
    for wrong in (12.5, True, "20", None):
        with pytest.raises(OptionError, match="give a whole number"):
            widen(model, x, {"0": wrong}, seed=0)
    with pytest.raises(OptionError, match=r"6 channels for 7, but it is rigid \(output\): it keeps its 5"):
        widen(model, x, {"7": 6}, seed=0)
    assert identical(snapshot(model), widen(model, x, {"0": 12, "7": 5}, seed=0))
    with pytest.raises(MismatchError, match="blueprint belongs to another model"):
        widen(model, x, {"0": 30}, seed=0, blueprint=pf.trace(mlp(13), x))
    with pytest.raises(OptionError, match="noise=-1"):
        widen_net2net(model, x, {}, seed=0, noise=-1)
