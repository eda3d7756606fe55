"""Transformers with the same shapes and other settings are not the same model."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import partialfusion as pf
from partialfusion.blueprint import trace_labels
from partialfusion.core.inputs import Inputs
from partialfusion.fusing.conform import conformed

from .needs import allow_torchvision, need
from .zoo import DECODER, ZOO, text


def llama(seed: int, **fields: Any) -> Any:
    need("transformers")
    allow_torchvision()
    package = importlib.import_module("transformers")
    torch.manual_seed(seed)
    return package.LlamaForCausalLM(package.LlamaConfig(**{**DECODER, "num_key_value_heads": 4, **fields})).eval()


def conform(first: Any, second: Any) -> list[pf.Blueprint]:
    inputs = Inputs.of(text(torch.Generator().manual_seed(0)))
    return conformed([first, second], trace_labels(second, inputs), inputs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            r"buffer inv_freq of model\.rotary_emb \(Llama",
        ),
        (
            {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8},
            r"inv_freq has shape \(4,\)|model\.layers\.0\.self_attn: view has size",
        ),
        (
            {"rms_norm_eps": 1e-5},
            r"model\.layers\.0\.input_layernorm: the norm has eps=1e-05 in .* and 1e-06 in the last",
        ),
        ({"hidden_act": "gelu"}, "GELU.* and a SiLU"),
    ],
    ids=["rope_theta", "heads", "eps", "activation"],
)
def test_other_settings_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(pf.MismatchError, match=message):
        conform(llama(0, **fields), llama(1))


def test_more_heads_of_the_same_size_conform() -> None:
    wide, last = conform(llama(0, num_attention_heads=8, num_key_value_heads=8, head_dim=16), llama(1))
    assert {(s.heads, t.heads) for s, t in zip(wide, last, strict=True) if s.blocks is not None} == {(8, 4)}


def test_gpt2_with_heads_of_another_size_is_refused() -> None:
    need("transformers")
    models = [ZOO["gpt2"].build(seed) for seed in (0, 1)]
    for module in models[0].modules():
        if type(module).__name__ == "GPT2Attention":
            module.num_heads, module.head_dim = 8, 8
    message = (
        r"transformer\.h\.0\.attn: view has size \[2, 12, -1, 8\] in models\[0\] and \[2, 12, -1, 16\] in the last"
    )
    with pytest.raises(pf.MismatchError, match=message):
        conform(*models)


def test_integer_buffers_are_not_averaged() -> None:
    need("transformers")
    entry = ZOO["bert"]
    blueprint = trace_labels(entry.build(0), Inputs.of(entry.inputs()))
    assert "bert.embeddings.position_ids" in blueprint.used & blueprint.constants
    assert blueprint.averaged == ()
