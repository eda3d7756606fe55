"""Trained networks by recipe: from the zoo of the checkout, from the cache, or trained now and cached."""

from __future__ import annotations

import json
import logging
import os
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.io.files import SUFFIX, reading, replacing, write_tensors

from .cell import config, key
from .data import cache, normalised
from .locks import held
from .recipes import Recipe
from .resuming import Resumable
from .samples import part, sample
from .text_recipes import TextRecipe
from .text_training import build_text, example_text, train_text
from .training import build, device, train

log = logging.getLogger(__name__)

AnyRecipe = Recipe | TextRecipe
ZOO = Path(__file__).parents[2] / "zoo"  # in a checkout; an installed package has none


@lru_cache(maxsize=16)
def trained(recipe: AnyRecipe) -> nn.Module:
    """The network of a recipe, in evaluation mode; the whole process uses one instance, which must not be changed.

    Checkpoints are stored in half precision, also those that are trained now: the networks are the same whether they
    come from the zoo or have just been trained.
    """
    return _loaded(recipe).to(device()).eval()


def _loaded(recipe: AnyRecipe) -> nn.Module:
    model = build_text(recipe) if isinstance(recipe, TextRecipe) else build(recipe)
    with reading(checkpoint(recipe)) as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    model.load_state_dict({name: t.float() if t.is_floating_point() else t for name, t in state.items()})
    return model


@lru_cache(maxsize=16)
def blueprint(recipe: AnyRecipe) -> pf.Blueprint:
    """The blueprint of a recipe's network, traced and checked once per process."""
    return pf.trace(trained(recipe), example(recipe))


def example(recipe: AnyRecipe) -> Tensor:
    """Two inputs: normalised images, or passages."""
    if isinstance(recipe, TextRecipe):
        return example_text(recipe).to(device())
    return normalised(sample(recipe.subset.data, 0, 20).images[:2]).to(device())


def checkpoint(recipe: AnyRecipe) -> Path:
    """The path of a recipe's checkpoint. Where there is none, one process trains the network and the others wait."""
    name, cached = file_name(recipe), cache.checkpoints()
    found = next((path for folder in (ZOO, cached) if os.path.exists(path := folder / name)), None)
    if found is not None:
        return found
    cache.make(cached)
    with held(cached / f".{name}.lock", wait=True):
        if not (cached / name).exists():
            log.info("training %s", recipe.name)
            resumable = Resumable(cached / f".{name}.partial")
            write(_trained_now(recipe, resumable), recipe, cached / name)
            resumable.done()
    return cached / name


def _trained_now(recipe: AnyRecipe, resumable: Resumable) -> nn.Module:
    if isinstance(recipe, Recipe):
        return train(recipe, part(recipe.subset), resumable)
    start = _loaded(recipe.base) if recipe.base else build_text(recipe)
    return train_text(recipe, start, resumable)


def file_name(recipe: AnyRecipe) -> str:
    """The readable name of a recipe and its hash."""
    return f"{recipe.name}-{key(recipe)[:16]}{SUFFIX}"


def write(model: nn.Module, recipe: AnyRecipe, path: Path) -> None:
    """Store a trained network in half precision, with its recipe in the header."""
    state = {name: _half(tensor) for name, tensor in model.state_dict().items()}
    with replacing(path) as file:
        write_tensors(file, state, {"recipe": json.dumps(config(recipe), sort_keys=True)})


def _half(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.to(torch.float16) if tensor.is_floating_point() else tensor
