"""Tiny checkpoints of Hugging Face on disk, and what is equal to what."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transformer.needs import allow_torchvision
from transformer.zoo import randomised

WIDTH, WORDS = 16, 31
TEXT: dict[str, Any] = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
LAYERS: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2", "LMHeadModel", {**TEXT, "n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": 16}),
    "llama": ("Llama", "ForCausalLM", {**TEXT, **LAYERS, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3", "ForCausalLM", {**TEXT, **LAYERS, "num_key_value_heads": 1, "head_dim": 8}),
    "gemma2": ("Gemma2", "ForCausalLM", {**TEXT, **LAYERS, "num_key_value_heads": 1, "head_dim": 8}),
    "bert": ("Bert", "ForMaskedLM", {**TEXT, **LAYERS}),
    "vit": (
        "ViT",
        "ForImageClassification",
        {**LAYERS, "image_size": 16, "patch_size": 8, "num_labels": 3},
    ),
    "swin": (
        "Swin",
        "ForImageClassification",
        {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2}
        | {"num_labels": 3},
    ),
}
IMAGES = "vit", "swin"


@cache
def model(kind: str, seed: int, dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    """A model with random weights."""
    allow_torchvision()
    package = importlib.import_module("transformers")
    family, head, own = KINDS[kind]
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        built = getattr(package, f"{family}{head}")(getattr(package, f"{family}Config")(**{**own, **fields}))
    return randomised(built, seed).to(dtype)


def saved(
    folder: Path, kind: str, seeds: tuple[int, ...] = (0, 1), dtype: torch.dtype = torch.float32, shard: str = "1GB"
) -> list[Path]:
    """Directories with a model for each seed."""
    found = []
    for seed in seeds:
        path = folder / f"{kind}-{seed}"
        model(kind, seed, dtype).save_pretrained(path, max_shard_size=shard)
        found.append(path)
    return found


def inputs(kind: str) -> dict[str, torch.Tensor]:
    if kind in IMAGES:
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
    return {"input_ids": torch.tensor([[3, 5, 9, 1], [4, 8, 2, 7]])}


def assert_same_bits(found: nn.Module, expected: nn.Module) -> None:
    """Every tensor has the same name, type, shape and bits."""
    ours, theirs = found.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    different = [n for n, t in ours.items() if t.dtype != theirs[n].dtype or not torch.equal(t, theirs[n])]
    assert not different
