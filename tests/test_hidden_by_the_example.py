"""Example inputs that show little of a network, such as zeros or a single step, hide nothing from the checks."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import partialfusion as pf
from zoo import error, identical, randomised, snapshot

WORDS, WIDTH, HEADS = 20, 16, 4


class Attention(nn.Module):
    """Its scale follows the width of the whole stream, which a wider network changes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.out = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.heads = HEADS

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) * y.shape[-1] ** -0.5).softmax(-1)
        return self.out(x + self.o((weights @ v).transpose(1, 2).flatten(2)))


class NormedInput(nn.Module):
    """A norm of the input can only be averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(self.norm(x))))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.a, self.b = nn.EmbeddingBag(WORDS, WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, 4)
        self.norm = nn.BatchNorm1d(24)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        return self.b(torch.relu(self.norm(self.a(self.words(words, offsets)))))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(WORDS, shape, generator=torch.Generator().manual_seed(seed))


def bags(count: int) -> tuple[Tensor, Tensor]:
    return drawn(6 * count), 6 * torch.arange(count)


@pytest.mark.parametrize("example", [torch.zeros(1, 8, dtype=torch.long), drawn(4, 1)], ids=["zeros", "one step"])
@pytest.mark.parametrize("data", [None, [drawn(32, 8)]], ids=["", "data"])
def test_spaces_whose_width_the_code_uses_keep_it(example: Tensor, data: list[Tensor] | None) -> None:
    model, x = randomised(Attention(), 0), drawn(4, 9, seed=1)
    for layer in (model.q, model.k):
        layer.weight.data *= 3
    fused = pf.fuse([model, model], example, alpha=0.5, data=data, allow_shortfall=True).model
    assert error(fused(x), model(x)) < 1e-4


@pytest.mark.parametrize("example", [torch.zeros(2, 8), torch.ones(2, 8)])
def test_a_shortfall_is_found(example: Tensor) -> None:
    models = [randomised(NormedInput(), seed) for seed in (0, 1)]
    for model in models:
        model.norm.bias.data.zero_()
    with pytest.raises(pf.ShortfallError, match="norm"):
        pf.fuse(models, example, alpha=1.0)


def test_a_shortfall_does_not_hide_in_half_precision() -> None:
    models = [randomised(NormedInput(), seed).bfloat16() for seed in (0, 1)]
    for seed, model in enumerate(models):
        drawn = torch.randn(8, generator=torch.Generator().manual_seed(seed))
        model.norm.weight.data.copy_(1 + 0.05 * drawn)
        model.norm.bias.data.zero_()
    with pytest.raises(pf.ShortfallError, match="norm"):
        pf.fuse(models, torch.randn(4, 8).bfloat16(), alpha=1.0)


def test_large_shares_that_are_averaged_are_named_where_outputs_agree(caplog: pytest.LogCaptureFixture) -> None:
    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.LayerNorm([16, 6]), nn.Flatten(), nn.Linear(96, 2, bias=False))

    models = [model(seed) for seed in (0, 1)]
    models[1].load_state_dict(models[0].state_dict())
    with caplog.at_level(logging.WARNING):
        pf.fuse(models, torch.randn(4, 16, 6), alpha=1.0, allow_shortfall=True)
    assert "of the parameters are only averaged" in caplog.text


@pytest.mark.parametrize("count", [3, 5, 8])
def test_statistics_stay_right_where_integers_are_no_indices(count: int) -> None:
    model = randomised(Bags(), 0)
    fused = pf.fuse([model, model], bags(count), alpha=0.0, data=[bags(32)]).model
    x = bags(9)
    assert error(fused(*x), model(*x)) < 1e-4


def test_measuring_statistics_anew_at_alpha_1_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def model(seed: int) -> nn.Module:
        return randomised(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)), seed)

    x = torch.randn(64, 6)
    with caplog.at_level(logging.WARNING):
        pf.fuse([model(0), model(1)], x[:4], alpha=1.0, data=[x], norm="recalibrate")
    assert "not exactly the ensemble" in caplog.text


@pytest.mark.parametrize("training", [True, False])
def test_spectral_norm_is_left_as_it_is(training: bool) -> None:
    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers = spectral_norm(nn.Linear(6, 16)), nn.ReLU(), spectral_norm(nn.Linear(16, 16)), nn.ReLU()
        return nn.Sequential(*layers, nn.Linear(16, 4)).train(training)

    models, x = [model(0), model(1)], torch.randn(4, 6)
    before = [snapshot(m) for m in models]
    pf.trace(models[0], x)
    fused = [pf.fuse(models, x, alpha=0.4).model for _ in range(2)]
    pf.prune(models[1], x, keep=0.5)
    assert all(identical(was, m) for was, m in zip(before, models, strict=True))
    assert identical(snapshot(fused[0]), fused[1])


class Asks(nn.Module):
    """Takes its numbers as indices, so that noise is nothing that it understands."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.a, self.b = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(self.words(words.long()))))


def test_models_that_do_not_run_on_noise() -> None:
    model, x = randomised(Asks(), 0), drawn(4, 5).float()
    assert "unchanged" in str(pf.trace(model, x))
    assert error(pf.fuse([model, model], x, alpha=0.5).model(x), model(x)) < 1e-4
