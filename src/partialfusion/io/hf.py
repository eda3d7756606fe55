"""Local checkpoint directories of Hugging Face: the config, the files of the weights, and the model described."""

from __future__ import annotations

import importlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.modules import first_line
from ..core.text import shorten
from ..errors import CheckpointError, OptionError
from .building import Bounds, bounded
from .files import StrPath, existing, is_plain_name, reading

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
# What transformers would open in a directory that only this library loads; the name of this file, which does not exist,
# is what its error then says.
POINTER = "load this directory with partialfusion.from_pretrained"
FITTING = (
    "name the directory that has its config, as hf:DIR (on the command line --factory for each model after the first)"
)


def folder_of(path: StrPath) -> Path:
    folder = Path(path)
    if os.path.isdir(folder):
        return folder
    with suppress(OSError, ValueError):
        for left in set_aside(folder):
            raise CheckpointError(f"{folder}: there is no such directory: a save was killed; rename {left} to it")
    raise CheckpointError(f"{folder}: there is no such directory; check the name (nothing is downloaded)")


def set_aside(target: Path) -> list[Path]:
    """Directories that a killed process was about to replace."""
    name = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{8}\.old")
    return sorted(p for p in target.parent.iterdir() if name.fullmatch(p.name) and p.is_dir())


def class_name(directory: StrPath) -> str:
    """The name of the class that the config of a directory names."""
    path = folder_of(directory) / CONFIG
    if not path.is_file():
        raise CheckpointError(
            f"{directory} has no {CONFIG}: name a directory that save_pretrained of transformers wrote"
        )
    names = read_json(path).get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError(f"{path} names no class under architectures: save the model with transformers again")
    return str(names[0])


def transformers() -> Any:
    """The package, or an error that says how to install it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise OptionError(f"this needs transformers ({first_line(error)}): pip install partialfusion[hf]") from error


def instance(folder: Path, name: str, bounds: Bounds, arguments: dict[str, Any] | None = None) -> nn.Module:
    """A model of a class of transformers, with random weights, as the config of a directory says.

    Args:
        folder: the directory.
        name: the class.
        bounds: how large the config may make it.
        arguments: other values for fields of the config; with these, anything goes.
    """
    package = transformers()
    try:
        kind: Any = getattr(package, name, None)
    except ImportError as error:  # transformers imports its models when they are first used
        raise OptionError(f"transformers cannot import {name}: {first_line(error)}") from error
    if not (isinstance(kind, type) and issubclass(kind, package.PreTrainedModel)):
        raise CheckpointError(
            f"{folder} holds a {name}, which transformers {package.__version__} does not have: pass an instance, as "
            "pf.from_pretrained(dir, into=model)"
        )
    where = folder / CONFIG
    try:
        if not arguments:
            bounds.check_config(read_json(where), where)
        config_class: Any = kind.config_class  # type: ignore[attr-defined]
        config = config_class.from_pretrained(folder, local_files_only=True, **(arguments or {}))
        if not arguments:
            _check_size(kind, config, bounds, where)
        with torch.random.fork_rng(devices=[]):
            model: nn.Module = kind(config)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{folder}: {name} cannot be built from its config: {first_line(error)}") from error
    return model.eval()


def _check_size(kind: Any, config: Any, bounds: Bounds, where: Path) -> None:
    """Build the model without numbers first, to see how large it becomes. A class whose code needs numbers is not
    measured so; its parameters are counted while it is built."""
    with torch.random.fork_rng(devices=[]), bounded(bounds, where):
        try:
            with torch.device("meta"):
                kind(config)
        except CheckpointError:
            raise
        except Exception:  # whatever the code of a model raises where tensors have no numbers
            kind(config)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a directory, all of them regular files in it or links to such."""
    if not has_weights(folder):
        pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        if pickled:
            raise CheckpointError(
                f"{folder} holds its weights only as pickles ({shorten(pickled)}), which could run code and are "
                "refused: load it with transformers and save it again, which writes safetensors"
            )
        raise CheckpointError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}")
    return [existing(folder / name) for name in _listed(folder)]


def has_weights(folder: Path) -> bool:
    """Whether a directory has weights as safetensors, in one file or several."""
    return os.path.lexists(folder / INDEX) or os.path.lexists(folder / SINGLE)


def _listed(folder: Path) -> list[str]:
    """The names of the files. As for transformers, a single file needs no index, and goes before one."""
    if os.path.isfile(folder / SINGLE) or not os.path.lexists(folder / INDEX):
        return [SINGLE]
    listed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(v, str) for v in listed.values()):
        raise CheckpointError(f"{folder / INDEX} lists no files under weight_map; save or copy it again")
    names = sorted(set(listed.values()))
    if POINTER in names:
        raise CheckpointError(
            f"{folder} holds a fused model that its config does not describe, which cannot be streamed: load it "
            "with pf.from_pretrained, and fuse the models with pf.fuse"
        )
    for name in names:
        if not is_plain_name(name):
            raise CheckpointError(
                f"{folder / INDEX} lists {shorten([repr(name)])}, which is no file in the same directory; copy it again"
            )
        if not os.path.lexists(folder / name):
            raise CheckpointError(f"{folder}: the shard {name} that {INDEX} lists is missing; copy it there again")
    return names


def bounds_of(folder: Path) -> Bounds:
    """How large the model of a directory may be: as its weights say, where it has some."""
    if not has_weights(folder):
        return Bounds.of_machine()
    files = weight_files(folder)
    tensors = 0
    for path in files:
        with reading(path) as file:
            tensors += len(file.keys())
    return Bounds.of(tensors, sum(path.stat().st_size for path in files))


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(existing(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}; save or copy it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, not an object; save or copy it again")
    return found
