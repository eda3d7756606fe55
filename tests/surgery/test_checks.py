"""The self-check: it moves everything, and does not take rounding for an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.surgery.verify import _deranged, reordered


@pytest.mark.parametrize("n", [2, 3, 4, 16])
def test_nothing_keeps_its_place(n: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        order = _deranged(n, rng)
        assert sorted(order.tolist()) == list(range(n))
        assert not (order == np.arange(n)).any()


class TwoHeads(nn.Module):
    """The second head counts twice: the heads may not be exchanged, though half of all orders would not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(6, n) for n in (8, 8, 8, 8))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.mT).softmax(-1) * torch.tensor([1.0, 2.0])[:, None, None]
        return self.out((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("seed", range(4))
def test_heads_that_differ_are_found_whatever_the_seed(seed: int) -> None:
    torch.manual_seed(0)
    model, x = TwoHeads().eval(), torch.randn(2, 5, 6)
    blueprint = pf.trace(model, x, seed=seed)
    assert blueprint["q"].kind != "elastic"
    assert blueprint["v"].kind != "elastic"


def test_reordering_moves_every_head() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    blueprint = pf.trace(nn.Sequential(nn.Linear(5, 8), layer, nn.Linear(8, 3)).eval(), torch.randn(2, 4, 5))
    heads = [s for s in blueprint if s.blocks is not None]
    for seed in range(5):
        plan = reordered(blueprint, [s.name for s in heads], np.random.default_rng(seed))
        for s in heads:
            pair = plan[s.name].pairs[0]
            assert not (s.blocks[pair.target] == s.blocks[pair.source]).any()


class SinglePrecision(nn.Module):
    """Computes its norm in single precision whatever it is given, as many language models do."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def test_rounding_is_not_taken_for_an_error() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(32, 32), SinglePrecision(), nn.GELU()]
    model = nn.Sequential(nn.Linear(6, 32), *layers, nn.Linear(32, 4)).eval()
    blueprint = pf.trace(model, torch.randn(4, 6))
    assert {s.kind for s in blueprint if "output" not in s.reasons} == {"elastic"}
