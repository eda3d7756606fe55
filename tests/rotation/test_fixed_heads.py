"""Heads whose number is written into the code keep their widths, and are rotated all the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf


class Attention(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.enter, self.qkv, self.leave, self.out = nn.Linear(5, 8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.enter(x))
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*h.shape[:2], 8)
        return self.out(torch.relu(h + self.leave(mixed))).mean(1)


@pytest.mark.parametrize("options", [{"similarity": "rotation"}, {"method": "auto", "similarity": "rotation"}])
@pytest.mark.parametrize("with_data", [True, False])
def test_heads_of_a_fixed_number_are_rotated(options: dict[str, str], with_data: bool) -> None:
    models = [Attention(0), Attention(1)]
    generator = torch.Generator().manual_seed(2)
    data = [torch.randn(16, 6, 5, generator=generator) for _ in range(2)]
    result = pf.fuse(
        [models[1], models[1]],
        data[0][:2],
        alpha=0.3,
        data=data if with_data else None,
        allow_shortfall=True,
        **options,
    )
    assert torch.allclose(result.model(data[0]), models[1](data[0]), atol=1e-4)
    assert {s.kind for s in pf.trace(models[1], data[0][:2]) if s.bundle} == {"permutable"}
    rotated = pf.fuse(models, data[0][:2], alpha=0.3, data=data, allow_shortfall=True, similarity="rotation").rotated
    assert {"qkv", "qkv#2"} <= set(rotated)
