"""Models that were trained from one base: their channels still correspond, so nothing but averaging is needed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import partialfusion as pf
from partialfusion.fusing.related import of_one_base


def network(seed: int, width: int = 12) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


def tuned(base: nn.Module, seed: int) -> nn.Module:
    """A little away from the base."""
    twin = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(0.1 * p.std() * torch.randn(p.shape, generator=generator))
    return twin


def test_one_base_is_told_from_two_starts() -> None:
    base = network(0)
    assert of_one_base([tuned(base, 1), tuned(base, 2)])
    assert not of_one_base([network(1), network(2)])
    assert not of_one_base([tuned(base, 1), network(2), base])
    assert not of_one_base([network(0, 14), base])
    assert not of_one_base([copy.deepcopy(base).to("meta"), base])


@pytest.mark.parametrize(("related", "method", "refitted"), [(True, "partial-ot", False), (False, "interpolate", True)])
def test_auto_goes_by_it(related: bool, method: str, refitted: bool) -> None:
    models = [tuned(network(0), 1), tuned(network(0), 2)] if related else [network(0), network(1)]
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    result = pf.fuse(models, x[:2], alpha=0.3, data=[x], method="auto")
    assert (result.recipe.method, bool(result.recipe.refit)) == (method, refitted)


def test_without_refit_models_of_one_base_are_averaged_at_alpha_0() -> None:
    models = [tuned(network(0), 1), tuned(network(0), 2)]
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    result = pf.fuse(models, x[:2], alpha=0.0, data=[x], norm="analytic", method="auto")
    for name, parameter in result.model.named_parameters():
        mean = (models[0].get_parameter(name) + models[1].get_parameter(name)) / 2
        assert torch.allclose(parameter, mean, atol=1e-6)
