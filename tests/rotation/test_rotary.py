"""Rotary positions: queries and keys are rotated within their pairs of channels, and twins made so are recovered."""

from __future__ import annotations

import copy
import importlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.rotation import Pairing, rotatable
from partialfusion.solvers.directions import phases, similarity
from transformer.needs import allow_torchvision

from .test_rotation import gap, output

WIDTH, HEADS, KEY_HEADS, SIZE = 16, 4, 2, 8


class Rotary(nn.Module):
    """One block of attention with grouped queries and rotary positions, of neighbouring channels or of halves."""

    def __init__(self, seed: int = 0, *, halves: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.halves = halves
        self.enter, self.norm = nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH)
        self.q = nn.Linear(WIDTH, HEADS * SIZE)
        self.k, self.v = (nn.Linear(WIDTH, KEY_HEADS * SIZE) for _ in range(2))
        self.o, self.leave = nn.Linear(HEADS * SIZE, WIDTH), nn.Linear(WIDTH, 3)
        self.eval()

    def turned(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2])[:, None] * 10.0 ** -torch.arange(0, 2, 2 / (SIZE // 2))
        split = x.unflatten(-1, (2, -1) if self.halves else (-1, 2))
        a, b = split.unbind(-2 if self.halves else -1)
        new = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
        return torch.stack(new, -2 if self.halves else -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (-1, SIZE)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.turned(4 * q), self.turned(4 * k)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.leave(x + self.o(y.transpose(1, 2).flatten(2)))


def samples(count: int = 48, seed: int = 0) -> Tensor:
    return torch.randn(count, 5, 6, generator=torch.Generator().manual_seed(seed))


@cache
def traced(halves: bool) -> pf.Blueprint:
    return pf.trace(Rotary(halves=halves), samples(2))


def with_random_phases(model: nn.Module, blueprint: pf.Blueprint, pairing: Pairing, spaces: list[str]) -> nn.Module:
    """A twin: the rows of queries and keys turned pair by pair, by hand."""
    twin = copy.deepcopy(model).double()
    rng = np.random.default_rng(0)
    for name in spaces:
        angles = torch.from_numpy(rng.uniform(0, 2 * np.pi, (blueprint[name].width, pairing.size // 2)))
        for binding in blueprint[name].bindings:
            rows = twin.get_parameter(binding.parameter).data
            for head, places in enumerate(binding.index):
                for copy_of in places.reshape(-1, pairing.size):
                    for number, pair in enumerate(pairing.pairs):
                        first, second = (rows[copy_of[i]].clone() for i in pair)
                        cos, sin = angles[head, number].cos(), angles[head, number].sin()
                        rows[copy_of[pair[0]]], rows[copy_of[pair[1]]] = (
                            cos * first - sin * second,
                            sin * first + cos * second,
                        )
    return twin.float()


@pytest.mark.parametrize("halves", [True, False])
def test_pairs_are_found_and_nothing_else(halves: bool) -> None:
    found = rotatable([Rotary(halves=halves)], [traced(halves)], Inputs.of(samples(2)))
    assert found.rotary == {"q": Pairing(SIZE, halves)}
    assert found.heads == {"q": ("v", "q")}
    assert found.left == ("enter",)  # it is read without a norm, too


@pytest.mark.parametrize("align", ["greedy", "fixed-point"])
@pytest.mark.parametrize("halves", [True, False])
def test_a_twin_with_other_phases_is_recovered(halves: bool, align: Any) -> None:
    model = Rotary(halves=halves)
    twin = with_random_phases(model, traced(halves), Pairing(SIZE, halves), ["q"])
    assert gap(output(twin, samples(8, 1)), output(model, samples(8, 1))) < 1e-5
    how: dict[str, Any] = {"blueprint": traced(halves), "method": "partial-ot", "align": align}
    for alpha, data in ((0.0, [samples()]), (0.5, [samples()]), (0.0, None)):
        result = pf.fuse([twin, model], samples(2), alpha=alpha, similarity="rotation", data=data, **how)
        assert "q" in result.rotated
        assert gap(output(result.model, samples(8, 1)), output(model, samples(8, 1))) < 1e-4
    channels = pf.fuse([twin, model], samples(2), alpha=0.0, similarity="permutation", data=[samples()], **how)
    assert gap(output(channels.model, samples(8, 1)), output(model, samples(8, 1))) > 1e-2


def test_everything_kept_apart_is_the_ensemble() -> None:
    a, b = Rotary(0), Rotary(1)
    how: dict[str, Any] = {"blueprint": traced(False), "data": [samples()], "similarity": "rotation"}
    nearly = pf.fuse([a, b], samples(2), alpha={"enter": 0.99, "*": 1.0}, method="partial-ot", **how)
    assert "q" in nearly.rotated
    assert gap(output(nearly.model, samples(8)), (output(a, samples(8)) + output(b, samples(8))) / 2) < 1e-4


def test_files_hold_the_phases(tmp_path: Path) -> None:
    models = [Rotary(0), Rotary(1)]
    result = pf.fuse(models, samples(2), alpha=0.5, data=[samples()], similarity="rotation", blueprint=traced(False))
    path = tmp_path / "rotary.safetensors"
    pf.save(result, path)
    again = pf.restore(path, models, samples(2))
    assert torch.equal(output(again.model, samples(8)), output(result.model, samples(8)))
    for ours, theirs in zip(again.equivalents, result.equivalents, strict=True):
        assert torch.equal(output(ours, samples(8)), output(theirs, samples(8)))


def test_phases_are_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    cross, pairs = rng.standard_normal((6, 6)), Pairing(6, True).pairs
    best = phases(cross, pairs)
    assert np.allclose(best @ best.T, np.eye(6))
    generator = torch.Generator().manual_seed(0)
    others = Pairing(6, True).random(500, generator).numpy()
    assert (best * cross).sum() >= (others * cross).sum((1, 2)).max()
    assert similarity(cross, 1.0, 1.0, pairs) == pytest.approx((best * cross).sum())
    assert np.allclose(phases(others[0], pairs), others[0])


FAMILIES = {  # with heads of 16 channels: all of them turned, or a quarter
    "llama": (("Llama", {"num_key_value_heads": 2}), Pairing(16, True)),
    "gpt_neox": (("GPTNeoX", {}), Pairing(4, True)),
    "cohere": (("Cohere", {"num_key_value_heads": 2}), Pairing(16, False)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_language_models_of_transformers(family: str) -> None:
    pytest.importorskip("transformers")
    allow_torchvision()
    package = importlib.import_module("transformers")
    (kind, fields), pairing = FAMILIES[family]
    config = getattr(package, f"{kind}Config")(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=40,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **fields,
    )
    torch.manual_seed(0)
    model = getattr(package, f"{kind}ForCausalLM")(config).eval()
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=p.shape[1] ** -0.5)
    words = torch.randint(40, (32, 9), generator=torch.Generator().manual_seed(1))
    blueprint = pf.trace(model, words[:2])
    (space,) = [s.name for s in blueprint if s.bundle and s.width == s.heads and s.kind != "rigid"]
    twin = with_random_phases(model, blueprint, pairing, [space])
    with torch.no_grad():
        expected = model(words).logits
        assert gap(twin(words).logits, expected) < 1e-5
        how: dict[str, Any] = {"method": "partial-ot", "blueprint": blueprint, "data": [words]}
        result = pf.fuse([twin, model], words[:2], alpha=0.0, similarity="rotation", **how)
        assert space in result.rotated
        assert gap(result.model(words).logits, expected) < 1e-4
