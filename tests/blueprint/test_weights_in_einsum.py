"""Layers that are written out: weights in einsum, and bags of embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.errors import FusionError

FORMS = {
    "rows": ("bi,ih->bh", "bh,oh->bo", (3, 6)),
    "weight first": ("hi,bit->bht", "oh,bht->bto", (2, 6, 5)),
    "many dimensions": ("...i,ih->...h", "...h,oh->...o", (2, 3, 6)),
}


class Written(nn.Module):
    def __init__(self, first: str, second: str, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        size = {"i": 6, "h": 12, "o": 4}
        self.first, self.second = first, second

        def weight(equation: str) -> nn.Parameter:
            names = next(t for t in equation.partition("->")[0].split(",") if set(t) <= set(size))
            return nn.Parameter(torch.randn([size[c] for c in names], generator=generator) * 0.4)

        self.a, self.b = weight(first), weight(second)

    def _apply_weight(self, equation: str, x: Tensor, weight: Tensor) -> Tensor:
        operands = (weight, x) if equation.startswith(("h", "o")) else (x, weight)
        return torch.einsum(equation, *operands)

    def forward(self, x: Tensor) -> Tensor:
        return self._apply_weight(self.second, torch.tanh(self._apply_weight(self.first, x, self.a)), self.b)


class Bag(nn.Module):
    def __init__(self, mode: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.out = nn.EmbeddingBag(20, 10, mode=mode), nn.Linear(10, 4)
        self.eval()

    def forward(self, words: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(words)))


class Product(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation, self.a = equation, nn.Parameter(torch.randn(6, 12))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.einsum(self.equation, x, self.a)).reshape(3, -1)


@pytest.mark.parametrize("form", FORMS)
def test_weights_in_einsum(form: str) -> None:
    first, second, shape = FORMS[form]
    a, b = Written(first, second, 0), Written(first, second, 1)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    assert pf.trace(a, x)["a"].kind == "elastic"
    assert torch.allclose(pf.fuse([a, b], x, alpha=1.0).model(x), (a(x) + b(x)) / 2, atol=1e-6)
    assert torch.allclose(pf.fuse([a, a], x, alpha=0.5).model(x), a(x), atol=1e-6)
    assert pf.prune(a, x, keep=0.5).model.a.numel() == a.a.numel() // 2


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    a, b = Bag(mode, 0), Bag(mode, 1)
    x = torch.randint(20, (6, 5), generator=torch.Generator().manual_seed(2))
    assert pf.trace(a, x)["words"].kind == "elastic"
    assert torch.allclose(pf.fuse([a, b], x, alpha=1.0).model(x), (a(x) + b(x)) / 2, atol=1e-6)
    assert torch.allclose(pf.fuse([a, a], x, alpha=0.5).model(x), a(x), atol=1e-6)
    assert pf.prune(a, x, keep=0.5).model.words.embedding_dim == 5


@pytest.mark.parametrize("equation", ["bi,ih->b", "bi,ih->bih"])
def test_other_products_with_a_weight_are_left_alone(equation: str) -> None:
    """A sum over everything, and one over nothing."""
    model = Product(equation)
    with pytest.raises(FusionError, match="einsum has no rule"):
        pf.fuse([model, model], torch.randn(3, 6), alpha=0.5)
