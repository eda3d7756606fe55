"""Weights with masks (torch.nn.utils.prune): the result holds the masked numbers, the models stay as they are."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import prune

import partialfusion as pf
from zoo import identical, snapshot


def masked(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).eval()
    prune.l1_unstructured(model[0], "weight", 0.3)
    prune.random_unstructured(model[0], "weight", 0.3)  # a second mask on top of the first
    prune.l1_unstructured(model[2], "bias", 1)
    model[2].weight.requires_grad_(False)
    return model


def test_masked_weights_are_fused_as_they_are_used() -> None:
    models, x = [masked(0), masked(1)], torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    before = [snapshot(m) for m in models]
    expected = (models[0](x) + models[1](x)) / 2
    fused = pf.fuse(models, x, alpha=1.0)
    assert torch.allclose(fused.model(x), expected, atol=1e-6)
    assert torch.allclose(pf.fuse([models[0], models[0]], x, alpha=0.5).model(x), models[0](x), atol=1e-6)
    assert set(dict(fused.model.named_parameters())) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert fused.model[0].weight.requires_grad
    assert not fused.model[2].weight.requires_grad
    assert any("masked" in change for change in fused.changes)
    assert all(identical(b, m) and prune.is_pruned(m) for b, m in zip(before, models, strict=True))
