"""A model fused with itself is itself on any input, however little of it the data shows."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import STIFF, ZOO, error, permuted_twin

TOLERANCE = 1e-5
WIDTHS = {"mlp": 64, "vgg-bn": 24, "resnet": 16, "transformer": 12}


@lru_cache
def twins(name: str) -> tuple[nn.Module, nn.Module, pf.Blueprint]:
    """A model of which some channels never fire near zero, its twin in another order, and its blueprint."""
    exhibit = {**ZOO, **STIFF}[name]
    model, x = exhibit.model(0, WIDTHS[name]), exhibit.inputs()
    with torch.no_grad():
        for number, (path, bias) in enumerate(model.named_parameters()):
            if bias.dim() == 1 and path.endswith("bias") and len(bias) > 5:
                bias[number % 7 :: 7] -= 8.0
    blueprint = pf.trace(model, x)
    return model, permuted_twin(model, x, seed=3, blueprint=blueprint), blueprint


def few(name: str) -> list[Tensor]:
    """Eight samples, all much alike."""
    shape = {**ZOO, **STIFF}[name].shape
    return [0.5 + 0.3 * torch.rand(8, *shape, generator=torch.Generator().manual_seed(5))]


def others(name: str) -> Tensor:
    """Inputs that are nothing like them."""
    shape = {**ZOO, **STIFF}[name].shape
    return 6 * torch.randn(64, *shape, generator=torch.Generator().manual_seed(6)) - 1


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize(("method", "permuted"), [("interpolate", False), ("interpolate", True), ("auto", True)])
def test_on_other_inputs_too(name: str, method: str, permuted: bool) -> None:
    model, twin, blueprint = twins(name)
    models = [twin if permuted else model, model]
    fused = pf.fuse(models, alpha=0.0, method=method, data=few(name), blueprint=blueprint)
    x = others(name)
    assert error(fused.model(x), model(x)) < TOLERANCE
    assert {n: p.shape for n, p in fused.model.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["mlp", "vgg-bn"])
def test_without_data_too(name: str) -> None:
    model, twin, blueprint = twins(name)
    fused = pf.fuse([twin, model], few(name)[0], alpha=0.0, method="interpolate", blueprint=blueprint)
    assert error(fused.model(others(name)), model(others(name))) < TOLERANCE
