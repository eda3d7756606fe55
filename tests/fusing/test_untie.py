"""A weight that is an embedding and the last layer, with no norm in front of the latter to take the models' shares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import error, randomised

WORDS, MIX = 11, (0.3, 0.7)
APART = "head.weight is no longer tied to embedding.weight"
X = torch.randint(WORDS, (3, 5), generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.a, self.b = nn.Embedding(WORDS, width), nn.Linear(width, 12), nn.Linear(12, width)
        self.head = nn.Linear(width, WORDS)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        return self.head(x + self.b(torch.relu(self.a(x))))


@pytest.fixture
def models() -> list[nn.Module]:
    return [randomised(Tied(), seed) for seed in (0, 1)]


def is_tied(model: nn.Module) -> bool:
    return model.head.weight is model.embedding.weight


def test_the_ensemble_is_exact_and_the_change_is_told(
    models: list[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    before = [{n: p.clone() for n, p in m.state_dict().items()} for m in models]
    result = pf.fuse(models, X, alpha=1, mix=MIX)
    assert error(result.model(X), sum(w * m(X) for w, m in zip(MIX, models, strict=True))) < 1e-5
    assert not result.shortfall
    assert APART in caplog.text
    assert APART in str(result.summary())
    assert not is_tied(result.model)
    for model, state in zip(models, before, strict=True):
        assert is_tied(model)
        assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())


def test_what_keeps_its_widths_stays_tied(models: list[nn.Module]) -> None:
    result = pf.fuse(models, X, alpha=0)
    assert is_tied(result.model)
    assert not result.changes
    assert result.count.ratio == 1.0


def test_a_twin_is_the_model(models: list[nn.Module]) -> None:
    model, order = models[0], torch.randperm(8, generator=torch.Generator().manual_seed(1))
    twin = Tied()
    with torch.no_grad():
        twin.embedding.weight.copy_(model.embedding.weight[:, order])
        twin.a.weight.copy_(model.a.weight[:, order])
        twin.a.bias.copy_(model.a.bias)
        twin.b.weight.copy_(model.b.weight[order])
        twin.b.bias.copy_(model.b.bias[order])
        twin.head.bias.copy_(model.head.bias)
    for alpha in (0, 0.5):
        assert error(pf.fuse([twin, model], X, alpha=alpha).model(X), model(X)) < 1e-5


def test_pruning_and_budgets_shrink_the_stream(models: list[nn.Module]) -> None:
    assert pf.prune(models[0], X, keep=0.5).model.embedding.weight.shape == (WORDS, 4)
    assert pf.fuse(models, X, method="cluster", alpha=0).model.embedding.weight.shape == (WORDS, 8)
    assert pf.fuse(models, X, budget=1.6).count.ratio <= 1.6


def test_it_is_stored_and_restored(models: list[nn.Module], tmp_path: Path) -> None:
    result, path = pf.fuse(models, X, alpha=0.5), tmp_path / "untied.safetensors"
    pf.save(result, path)
    loaded = pf.load(path, into=models[1])
    assert torch.equal(loaded(X), result.model(X))
    assert is_tied(models[1])
    restored = pf.restore(path, models, X)
    assert torch.equal(restored.model(X), result.model(X))
    data = [torch.randint(WORDS, (8, 5)) for _ in range(4)]
    assert pf.refit(restored, data).model(X).shape == result.model(X).shape


def test_a_blueprint_traced_before_serves(models: list[nn.Module]) -> None:
    blueprint = pf.trace(models[1], X)
    assert blueprint["embedding"].kind == "elastic"
    assert torch.equal(
        pf.fuse(models, X, alpha=0.5, blueprint=blueprint).model(X), pf.fuse(models, X, alpha=0.5).model(X)
    )


class Unused(Tied):
    """Has a parameter that only training uses."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (self.mask.sum() if self.training else 0)


def test_parameters_that_only_training_uses_are_named() -> None:
    result = pf.fuse([randomised(Unused(), seed).eval() for seed in (0, 1)], X, alpha=0.5)
    assert "not used in evaluation mode, so averaged as it stands: mask" in str(result.summary())
