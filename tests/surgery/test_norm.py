"""Statistics of batch norms in the result."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import partialfusion as pf
from zoo import ZOO, ResNet, error, randomised


def pair() -> list[nn.Module]:
    return [randomised(ResNet(8), s) for s in (0, 1)]


def test_recalibration_is_the_average_over_the_batches_by_their_samples() -> None:
    models = pair()
    data = [torch.randn(n, 3, 8, 8) for n in (8, 4, 6)]
    fused = pf.fuse(models, data[0], alpha=0.4, data=data)
    assert fused.recipe.norm == "recalibrate"
    oracle = copy.deepcopy(fused.model)
    for m in oracle.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.reset_running_stats()
    oracle.train()
    with torch.no_grad():
        for x, seen in zip(data, (8, 12, 18), strict=True):
            for m in oracle.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.momentum = len(x) / seen
            oracle(x)
    for (name, a), b in zip(fused.model.named_buffers(), oracle.buffers(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6), name
    assert all(m.momentum == 0.1 for m in fused.model.modules() if isinstance(m, nn.BatchNorm2d))
    assert int(fused.model.bn1.num_batches_tracked) == 3


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_how_data_is_split_into_batches_makes_no_difference(name: str) -> None:
    """Up to rounding, but for the statistics of batch norms, which refitting measures over all of the data."""
    models = [ZOO[name].model(seed) for seed in (0, 1)]
    x = torch.cat([ZOO[name].inputs(seed) for seed in range(10)])
    options = {"alpha": 0.4, "refit": name == "resnet"}
    whole, parts = (pf.fuse(models, data=data, **options).model for data in ([x], x.split(7)))
    assert error(parts(x), whole(x)) < 1e-5


def test_statistics_of_the_first_norm_are_those_of_the_data() -> None:
    models = pair()
    x = torch.randn(32, 3, 8, 8)
    fused = pf.fuse(models, x[:2], alpha=0.5, data=[x], features="weights").model
    with torch.no_grad():
        y = fused.conv1(x).movedim(1, -1).flatten(0, -2)
    assert torch.allclose(fused.bn1.running_mean, y.mean(0), atol=1e-5)
    assert torch.allclose(fused.bn1.running_var, y.var(0), rtol=1e-4)


def test_affine_parameters_follow_the_write_kernels() -> None:
    models, x = pair(), torch.randn(2, 3, 8, 8)
    mix = (0.3, 0.7)
    fused = pf.fuse(models, x, alpha=0.4, mix=mix)
    pairs = fused.plan["conv1"].pairs
    for name in ("weight", "bias", "running_mean"):
        expected = sum(
            torch.from_numpy(p.write_matrix()).float() @ getattr(m.bn1, name)
            for p, m in zip(pairs, models, strict=True)
        )
        assert torch.allclose(getattr(fused.model.bn1, name), expected, atol=1e-6)


@pytest.mark.parametrize("mix", [(0.5, 0.5), (0.2, 0.8)])
def test_the_analytic_rule_is_the_papers_formula(mix: tuple[float, float]) -> None:
    """First norm: both models read the same input, so the cosine is that of the plain kernels."""
    models, x = pair(), torch.randn(2, 3, 8, 8)
    fused = pf.fuse(models, x, alpha=0.4, mix=mix)
    ours, theirs = fused.plan["conv1"].pairs
    place = dict(zip(ours.target, ours.source, strict=True)), dict(zip(theirs.target, theirs.source, strict=True))
    for t in range(ours.targets):
        i, j = place[0].get(t), place[1].get(t)
        var = fused.model.bn1.running_var[t]
        if i is None or j is None:
            source, k = (models[1], j) if i is None else (models[0], i)
            assert var == pytest.approx(float(source.bn1.running_var[k]), rel=1e-5)
            continue
        w = [m.conv1.weight[k].detach().flatten() for m, k in zip(models, (i, j), strict=True)]
        std = [float(m.bn1.running_var[k].sqrt()) for m, k in zip(models, (i, j), strict=True)]
        rho = float(torch.cosine_similarity(w[0], w[1], dim=0))
        a, b = mix[0] * std[0], mix[1] * std[1]
        assert var == pytest.approx(a * a + b * b + 2 * a * b * rho, rel=1e-4)


@pytest.mark.parametrize("alpha", [0.3, 0.7])
def test_isolated_channels_keep_their_variance_by_the_analytic_rule(alpha: float) -> None:
    """At every norm, also where the channel reads fused ones."""
    models, x = pair(), torch.randn(2, 3, 8, 8)
    fused = pf.fuse(models, x, alpha=alpha, norm="analytic")
    state, sources = fused.model.state_dict(), [m.state_dict() for m in models]
    checked = 0
    for name, space in fused.plan.layout.items():
        writers = [dict(zip(p.target.tolist(), p.source.tolist(), strict=True)) for p in fused.plan[name].pairs]
        for binding in (b for b in space.bindings if b.parameter.endswith("running_var")):
            for target, (place,) in enumerate(binding.index):
                entries = [(m, w[target]) for m, w in enumerate(writers) if target in w]
                if len(entries) == 1:
                    (m, channel), checked = entries[0], checked + 1
                    assert state[binding.parameter][place] == pytest.approx(
                        float(sources[m][binding.parameter][channel]), rel=1e-6
                    )
    assert checked > 10


def test_the_analytic_rule_is_exact_for_standard_normal_inputs() -> None:
    """Statistics of the sources and of the fused first layer, measured on many normal inputs."""
    models = pair()
    data = [torch.randn(256, 3, 8, 8) for _ in range(8)]
    for model in models:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
                module.momentum = None
        model.train()
        with torch.no_grad():
            for x in data:
                model(x)
        model.eval()
    analytic = pf.fuse(models, data[0][:2], alpha=0.2).model
    measured = pf.fuse(models, data[0][:2], alpha=0.2, data=data, features="weights").model
    assert torch.allclose(analytic.bn1.running_mean, measured.bn1.running_mean, atol=1e-2)
    assert torch.allclose(analytic.bn1.running_var, measured.bn1.running_var, rtol=5e-2)


def test_norms_without_statistics_or_affine_parameters() -> None:
    def build(seed: int) -> nn.Module:
        layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, affine=False), nn.ReLU()]
        layers += [nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU()]
        return randomised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 16, 4)), seed)

    models, x = [build(0), build(1)], torch.randn(5, 3, 8, 8)
    assert torch.allclose(pf.fuse(models, x, alpha=1.0).model(x), (models[0](x) + models[1](x)) / 2, atol=1e-5)
    assert torch.isfinite(pf.fuse(models, x, alpha=0.3, data=[x]).model(x)).all()


class OwnNorm(nn.Module):
    """Statistics and affine parameters that no module of PyTorch holds."""

    def __init__(self, width: int, normalise: str) -> None:
        super().__init__()
        self.normalise = normalise
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.normalise == "functional":
            return nn.functional.batch_norm(x, self.mean, self.var, self.scale, self.shift)
        if self.normalise == "keywords":
            return nn.functional.batch_norm(
                x, running_mean=self.mean, running_var=self.var, eps=1e-5, weight=self.scale
            )
        return torch.batch_norm(x, self.scale, self.shift, self.mean, self.var, False, 0.1, 1e-5, False)


@pytest.mark.parametrize("normalise", ["functional", "keywords", "torch"])
def test_norms_of_the_users_own_are_measured_too(normalise: str, caplog: pytest.LogCaptureFixture) -> None:
    """And nothing but their statistics changes, in whatever order the function takes its arguments."""

    def build(seed: int) -> nn.Module:
        layers = [nn.Conv2d(3, 6, 3), OwnNorm(6, normalise), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4)]
        return randomised(nn.Sequential(*layers), seed)

    models, x = [build(0), build(1)], torch.randn(16, 3, 8, 8)
    options = {"alpha": 0.3, "features": "weights"}
    measured = pf.fuse(models, x[:2], data=[x], **options).model
    analytic = pf.fuse(models, x[:2], norm="analytic", **options).model
    with torch.no_grad():
        y = measured[0](x).movedim(1, -1).flatten(0, -2)
    assert torch.allclose(measured[1].mean, y.mean(0), atol=1e-5)
    assert torch.allclose(measured[1].var, y.var(0), rtol=1e-4)
    for one, other in zip(measured.parameters(), analytic.parameters(), strict=True):
        assert torch.equal(one, other)
    assert "averaged, not measured" not in caplog.text
