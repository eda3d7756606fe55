"""GPT-2 with as many heads as the large ones have: its layers keep how many channels they write, often as many as they
read."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
from torch import nn

from . import conformance as check
from .conformance import TOLERANCE, Case
from .needs import allow_torchvision, need
from .zoo import VOCABULARY, ZOO

WIDTH = 96


def gpt2(heads: int) -> nn.Module:
    package = importlib.import_module("transformers")
    words = {"vocab_size": VOCABULARY, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
    return package.GPT2LMHeadModel(package.GPT2Config(n_embd=WIDTH, n_layer=1, n_head=heads, **words))


@pytest.mark.parametrize("heads", [8, 16])
def test_a_multiple_of_eight_heads_is_fused_as_any_other_number(heads: int) -> None:
    need("transformers")
    allow_torchvision()
    case = Case(replace(ZOO["gpt2"], make=lambda: gpt2(heads)))
    assert all(s.kind == "elastic" for s in case.traced[0] if "output" not in s.reasons)
    assert check.ensemble(case) <= TOLERANCE
    assert check.itself(case) <= TOLERANCE
    for alpha in (0.2, 0.5):
        result = case.fuse(case.models, alpha=alpha)
        assert result.count.ratio > 1
        layer = result.model.transformer.h[0].attn.c_proj
        read, written = layer.weight.shape
        assert WIDTH < read < 2 * WIDTH
        assert read % (WIDTH // heads) == 0
        assert layer.nf == written > WIDTH
