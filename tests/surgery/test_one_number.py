"""One number for several widths: code that splits into parts of a width that it keeps, which all have to grow alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import partialfusion as pf


class Parts(nn.Module):
    """The blocks of Res2Net in small: each part goes through a layer of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.width = 8
        self.enter, self.leave = nn.Linear(6, 16), nn.Linear(16, 3)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.enter(x).relu().split(self.width, 1)
        return self.leave(torch.cat([self.one(first).relu(), self.two(second).relu()], 1))


def test_parts_of_one_width_are_elastic() -> None:
    one, other, x = Parts(0), Parts(1), torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    blueprint = pf.trace(other, x)
    assert {s.kind for s in blueprint if s.name != "leave"} == {"elastic"}
    whole = pf.fuse([one, other], x, alpha=1.0, blueprint=blueprint).model
    assert whole.width == 16
    assert torch.allclose(whole(x), (one(x) + other(x)) / 2, atol=1e-6)
    assert pf.fuse([one, other], x, alpha=0.5, blueprint=blueprint).model.width == 12
