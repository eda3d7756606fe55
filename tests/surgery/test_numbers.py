"""Whole numbers that modules keep: those that must follow a new size do, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.surgery.numbers import _reached, numbers_of, set_number


class Heads(nn.Module):
    """Attention whose numbers are all alike: four heads of four channels, four positions, a window of four."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.window, self.shape, self.scale = 4, 4, (4, 4, 4), 16
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        parts = self.qkv(x).view(batch, self.window, 3, self.heads, self.shape[2]).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        weights = (q @ k.mT / self.scale).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.attention, self.leave = nn.Linear(5, 16), Heads(), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.leave((x + self.attention(x)).mean(1))


def test_the_number_of_heads_follows_and_nothing_that_is_equal_to_it() -> None:
    torch.manual_seed(0)
    a, b, x = Net().eval(), Net().eval(), torch.randn(2, 4, 5)
    result = pf.fuse([a, b], x, alpha=0.5)
    attention = result.model.attention
    assert (attention.heads, attention.window, attention.shape, attention.scale) == (6, 4, (4, 4, 4), 16)
    whole = pf.fuse([a, b], x, alpha=1.0)
    assert whole.model.attention.heads == 8
    with torch.no_grad():
        assert torch.allclose(whole.model(x), (a(x) + b(x)) / 2, atol=1e-6)
    assert b.attention.heads == 4


def test_numbers_that_code_hides_by_minus_one_are_found_without_others() -> None:
    """With any number of heads the model runs; the number of the innermost module is the one that brings them back."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 2
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    class Windows(nn.Module):
        """Attention within windows of two positions, as many as there are heads."""

        def __init__(self) -> None:
            super().__init__()
            self.window = 2
            self.enter, self.attention, self.leave = nn.Linear(5, 16), Hidden(), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.enter(x).unflatten(1, (-1, self.window)).flatten(0, 1)
            return self.leave((x + self.attention(x)).unflatten(0, (2, -1)).mean((1, 2)))

    torch.manual_seed(0)
    a, b, x = Windows().eval(), Windows().eval(), torch.randn(2, 8, 5)
    whole = pf.fuse([a, b], x, alpha=1.0).model
    assert (whole.attention.heads, whole.window) == (4, 2)
    with torch.no_grad():
        assert torch.allclose(whole(x), (a(x) + b(x)) / 2, atol=1e-6)


class Layer(nn.Module):
    """Keeps how many channels it writes, as the layers of GPT-2 do."""

    def __init__(self, read: int, written: int) -> None:
        super().__init__()
        self.written = written
        self.weight, self.bias = nn.Parameter(torch.randn(read, written)), nn.Parameter(torch.randn(written))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, 1), self.weight).view(*x.shape[:2], self.written)


class OfLayers(nn.Module):
    """Eight heads of six channels, and a stream of as many channels as they have together."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.qkv, self.out, self.leave = Layer(5, 48), Layer(48, 144), Layer(48, 48), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        q, k, v = (t.unflatten(-1, (-1, 6)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.leave((x + self.out(heads.transpose(1, 2).flatten(2))).mean(1))


@pytest.mark.parametrize("alpha", [0.2, 0.6])
def test_what_a_layer_writes_is_not_taken_for_what_it_reads(alpha: float) -> None:
    """Both are of the same width, and an eighth of both is a whole number of channels and of heads."""
    torch.manual_seed(0)
    a, b, x = OfLayers().eval(), OfLayers().eval(), torch.randn(2, 4, 5)
    result = pf.fuse([a, b], x, alpha=alpha)
    assert [s.kind for s in result.blueprint if "output" not in s.reasons] == ["elastic"] * 3
    assert result.blueprint.follows == {("Layer", "written"): "written"}
    assert result.count.ratio > 1
    out = result.model.out
    assert (out.written, out.weight.shape[0] % 6) == (out.weight.shape[1], 0)


def test_numbers_that_do_not_follow_after_all_are_searched_anew() -> None:
    torch.manual_seed(0)
    a, b, x = Net().eval(), Net().eval(), torch.randn(2, 4, 5)
    blueprint = replace(pf.trace(b, x), follows={("Heads", "window"): "heads"})
    attention = pf.fuse([a, b], x, alpha=0.5, blueprint=blueprint).model.attention
    assert (attention.heads, attention.window) == (6, 4)


def test_a_model_that_fails_behind_a_layer_comes_further_than_one_that_fails_in_it() -> None:
    class Cut(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer = nn.Linear(width, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).view(-1, 3)

    x = torch.zeros(2, 6)
    inside, behind = (_reached(Cut(width), lambda m: m(x)) for width in (5, 6))
    assert len(inside.at) == 2
    assert len(behind.at) == 1
    assert inside.calls < behind.calls


def test_numbers_in_tuples_are_set_one_by_one() -> None:
    module = Heads()
    assert numbers_of(module)["shape[2]"] == 4
    set_number(module, "shape[1]", 7)
    set_number(module, "heads", 5)
    assert (module.shape, module.heads) == ((4, 7, 4), 5)
