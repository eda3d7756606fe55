"""Streams with layer scale: factors go into the layers that write the branches, where a rotation is used."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.rotation import rotatable

from .networks import WIDTH, Block, Transformer, rotated_by_hand, samples
from .test_rotation import batches, gap, output


class Factors(nn.Module):
    """A factor for every channel, as in timm's LayerScale; small, as after a short training."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(0.1 + 0.5 * torch.rand(WIDTH, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class ScaledBlock(Block):
    """A block whose branches are scaled; with `extra`, the first of them is the sum of two layers."""

    def __init__(self, like: Block, seed: int, extra: bool) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(copy.deepcopy(like).__dict__)
        self.ls1, self.ls2 = Factors(seed), Factors(seed + 1)
        self.extra = nn.Linear(WIDTH, WIDTH) if extra else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.ls1(self.attend(y) if self.extra is None else self.attend(y) + self.extra(y))
        return x + self.ls2(self.down(torch.relu(self.up(self.norm2(x)))))


class Scaled(Transformer):
    def __init__(self, seed: int = 0, kind: str = "layer norm", extra: bool = False) -> None:
        super().__init__(seed, kind)
        self.blocks = nn.Sequential(*(ScaledBlock(b, 10 * seed + 2 * k, extra) for k, b in enumerate(self.blocks)))
        self.eval()


def folded(model: Scaled) -> Scaled:
    """The same function with the factors in the layers before them."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for block in twin.blocks:
            for layer, factors in ((block.o, block.ls1), (block.down, block.ls2)):
                layer.weight *= factors.gamma[:, None]
                layer.bias *= factors.gamma
                factors.gamma.fill_(1.0)
    return twin


def fused(models: list[Any], **options: Any) -> pf.Fusion:
    known: dict[str, Any] = {"data": batches(), "method": "partial-ot", "similarity": "rotation", "refit": False}
    return pf.fuse(models, samples(2), **known | options)


def factors(model: nn.Module) -> Tensor:
    return torch.cat([p.detach() for n, p in model.named_parameters() if n.endswith("gamma")])


@pytest.mark.parametrize("alpha", [0.0, 0.4])
@pytest.mark.parametrize("kind", ["layer norm", "RMS norm"])
def test_a_rotated_twin_is_recovered(kind: str, alpha: float) -> None:
    model = Scaled(kind=kind)
    twin = rotated_by_hand(folded(model))
    assert gap(output(twin), output(model)) < 1e-5
    before = copy.deepcopy(model.state_dict())
    result = fused([twin, model], alpha=alpha)
    assert "embed" in result.rotated
    assert not result.unrotated
    assert gap(output(result.model), output(model)) < 1e-4
    assert (factors(result.model) == 1).all()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_everything_kept_apart_is_the_ensemble_and_channels_keep_their_factors() -> None:
    models = [Scaled(0), Scaled(1)]
    nearly = fused(models, alpha={"embed": 0.999, "*": 1.0})
    assert "embed" in nearly.rotated
    assert gap(output(nearly.model), (output(models[0]) + output(models[1])) / 2) < 1e-4
    assert (factors(fused(models, alpha=0.0, similarity="permutation").model) != 1).all()


def test_factors_of_a_sum_of_layers_stay_and_the_stream_keeps_its_channels(caplog: pytest.LogCaptureFixture) -> None:
    model = Scaled(extra=True)
    free = rotatable([model], [pf.trace(model, samples(2))], Inputs.of(samples(2)))
    assert "embed" not in free.directions
    assert "embed" in free.left
    with caplog.at_level(logging.WARNING):
        fused([model, Scaled(1, extra=True)], alpha=0.0)
    assert "embed may not be rotated" in caplog.text
