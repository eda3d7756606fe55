"""With data, too: a network fused with itself or a reordered twin is itself, and a share of one is that model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import partialfusion as pf
from zoo import ZOO, Exhibit, error, identical, permuted_twin, randomised, snapshot

TOLERANCE = 1e-4
NORMED = ["vgg-bn", "resnet", "pre-activation", "grouped"]
normed = pytest.mark.parametrize("exhibit", [ZOO[name] for name in NORMED], ids=NORMED)


def data_of(exhibit: Exhibit) -> list[torch.Tensor]:
    """Batches that are not at all like what the stored statistics were measured on."""
    return [3 * exhibit.inputs(seed) + 1 for seed in range(2)]


@normed
@pytest.mark.parametrize("refit", [False, True])
def test_itself_and_a_twin(exhibit: Exhibit, refit: bool) -> None:
    model, x = exhibit.model(0), exhibit.inputs(9)
    twin = permuted_twin(model, exhibit.inputs(), 1, exhibit.blueprint)
    for models, alpha in (([model, model], 0.0), ([twin, model], 0.0), ([model, model], 0.4)):
        options = {"alpha": alpha, "mix": (0.3, 0.7), "data": data_of(exhibit), "refit": refit}
        fused = pf.fuse(models, exhibit.inputs(), blueprint=exhibit.blueprint, **options)
        assert error(fused.model(x), model(x)) < TOLERANCE


@normed
@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_one(exhibit: Exhibit, share: int) -> None:
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs(9)
    before = [snapshot(m) for m in models]
    mix = [float(share == m) for m in (0, 1)]
    for alpha in (0.0, 0.4):
        options = {"alpha": alpha, "mix": mix, "data": data_of(exhibit)}
        fused = pf.fuse(models, exhibit.inputs(), blueprint=exhibit.blueprint, **options)
        assert error(fused.model(x), models[share](x)) < TOLERANCE
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))


def statistics(model: nn.Module) -> list[torch.Tensor]:
    return [m.running_var.clone() for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


def test_what_is_changed_is_measured_anew() -> None:
    exhibit = ZOO["resnet"]
    models, data = [exhibit.model(0), exhibit.model(1)], data_of(exhibit)
    options = {"data": data, "blueprint": exhibit.blueprint}
    for size in ({"alpha": 0.4}, {"alpha": 0.0, "mix": (0.999, 0.001)}):
        auto = pf.fuse(models, data[0], **size, **options)
        anew = pf.fuse(models, data[0], norm="recalibrate", **size, **options)
        assert all(torch.equal(a, b) for a, b in zip(statistics(auto.model), statistics(anew.model), strict=True))


def test_silent_example_inputs_prove_nothing() -> None:
    def network(seed: int) -> nn.Module:
        parts = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, affine=False), nn.ReLU(), nn.Flatten()
        model = randomised(nn.Sequential(*parts, nn.Linear(8 * 36, 5, bias=False)), seed)
        model[1].running_mean.zero_()
        return model

    models, zeros, data = [network(0), network(1)], torch.zeros(2, 3, 8, 8), [torch.randn(9, 3, 8, 8)]
    assert torch.equal(models[0](zeros), models[1](zeros))
    fused, anew = (pf.fuse(models, zeros, alpha=0.0, data=data, norm=norm).model for norm in ("auto", "recalibrate"))
    assert torch.equal(fused[1].running_var, anew[1].running_var)


def test_recalibration_that_is_asked_for_measures_everything() -> None:
    exhibit = ZOO["vgg-bn"]
    model, data = exhibit.model(0), data_of(exhibit)
    fused = pf.fuse([model, model], data[0], alpha=0.0, data=data, norm="recalibrate", blueprint=exhibit.blueprint)
    assert all(not torch.isclose(a, b).any() for a, b in zip(statistics(fused.model), statistics(model), strict=True))
