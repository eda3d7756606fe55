"""Directories as Hugging Face has them: results that a config does not describe, and local checkpoints."""

from __future__ import annotations

import copy
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..core.alone import alone
from ..core.modules import first_line, named_tensors
from ..core.text import shorten
from ..core.version import __version__
from ..errors import CheckpointError, OptionError
from ..fusing.validation import check_result
from .building import Bounds
from .files import DTYPES, StrPath, existing
from .header import shard_path
from .hf import (
    CONFIG,
    FITTING,
    INDEX,
    POINTER,
    bounds_of,
    class_name,
    folder_of,
    instance,
    read_json,
    set_aside,
    weight_files,
    write_json,
)
from .shards import opened
from .storage import inspect, load, save
from .temporary import claimed

if TYPE_CHECKING:
    from ..fusing.result import Fusion

WEIGHTS, RECORD, README = "model.partialfusion.safetensors", "partialfusion.json", "README.md"
GENERATION = "generation_config.json"
FORMAT = 1
OURS = {CONFIG, GENERATION, INDEX, WEIGHTS, RECORD, README}

PAGE = """\
# A fused {model}

Written by partialfusion {version}. Some layers of this model have widths or norms that its config does not describe,
so `transformers` cannot load it by itself. Load it with

```python
import partialfusion as pf

model = pf.from_pretrained("this directory")
```
"""


@alone
def save_pretrained(result: Fusion, directory: StrPath, *, dtype: torch.dtype | None = None) -> None:
    """Write a fused model of Hugging Face's as a directory, completely or not at all.

    It holds the config, the generation config if there is one, and the fusion as `save` writes it. `from_pretrained`
    of this library loads it; that of transformers refuses. Other files in the directory, such as a tokenizer's, stay.

    Args:
        result: what `fuse` or `prune` returned for models of transformers.
        directory: the directory to write; it is created, or replaced if it holds an earlier result.
        dtype: the precision for parameters that are wider: torch.float16, torch.bfloat16 or torch.float32.
    """
    check_result(result)
    model: Any = result.model
    if not callable(getattr(getattr(model, "config", None), "save_pretrained", None)):
        raise OptionError(
            f"{type(model).__name__} has no config that can be saved, so it is no model of transformers: use "
            "pf.save(result, path)"
        )
    target = Path(os.path.realpath(directory))
    check_directory(target)
    with _replacing(target) as folder:
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
        generation: Any = getattr(model, "generation_config", None)
        if callable(getattr(generation, "save_pretrained", None)):
            copy.deepcopy(generation).save_pretrained(folder)
        save(result, folder / WEIGHTS, dtype=dtype)
        write_pointer(folder)
        write_record(folder, type(model).__name__)


def write_pointer(folder: Path) -> None:
    """Let transformers refuse a directory, with an error that says what loads it, and say so to people."""
    write_json(folder / INDEX, {"metadata": {}, "weight_map": {"partialfusion": POINTER}})


def write_record(folder: Path, model: str, shards: Sequence[str] = (), *, page: bool = True) -> None:
    """Write what makes a directory one that `from_pretrained` loads: the class of the model, and the files of it.

    Args:
        folder: the directory.
        model: the class.
        shards: the files beside the header.
        page: whether a page says that only this library loads it.
    """
    record = {"format": FORMAT, "model": model, "partialfusion": __version__, "weights": WEIGHTS}
    write_json(folder / RECORD, {**record, **({"shards": list(shards)} if shards else {})})
    if page:
        (folder / README).write_text(PAGE.format(model=model, version=__version__))


@alone
def from_pretrained(directory: StrPath, *, into: nn.Module | None = None) -> nn.Module:
    """The fused model of a directory that `save_pretrained` wrote, in evaluation mode. Nothing is downloaded.

    Args:
        directory: the directory.
        into: an instance of the model's class, with any widths, where that is not a class of transformers but your
            own; it is not changed.
    """
    folder = folder_of(directory)
    if not (folder / RECORD).is_file():
        raise CheckpointError(
            f"{folder} was not written by pf.save_pretrained: it has no {RECORD}; load it with transformers"
        )
    record = read_json(folder / RECORD)
    if record.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has format {record.get('format')!r}, written by partialfusion {record.get('partialfusion')}; "
            f"this version reads format {FORMAT}: install the version that wrote it, or a later one"
        )
    weights = existing(folder / WEIGHTS)
    if into is None:
        model: Any = instance(folder, str(record.get("model")), _bounds_of_fused(weights))
    else:
        model = copy.deepcopy(into)
    _match_precision(model, weights)
    found: Any = load(weights, into=model).eval()
    if (folder / GENERATION).is_file() and hasattr(found, "generation_config"):
        try:
            found.generation_config = type(found.generation_config).from_pretrained(folder, local_files_only=True)
        except Exception as error:  # whatever transformers raises for a file that is not what it wrote
            raise CheckpointError(
                f"{folder / GENERATION} cannot be read: {first_line(error)}; save or copy it again"
            ) from error
    return found


def _bounds_of_fused(weights: Path) -> Bounds:
    """How large the model may be that a result was made of, whose widths its plan knows."""
    stored = inspect(weights)
    sizes = [existing(shard_path(weights, name)).stat().st_size for name in stored.shards]
    wider = [p.sources / max(1, r.width) for r in stored.plan.values() for p in r.pairs]
    return Bounds.of(len(stored.packings), int((weights.stat().st_size + sum(sizes)) * max(1.0, *wider) ** 2))


def build_directory(directory: StrPath, arguments: dict[str, Any]) -> nn.Module:
    """The model that the config of a local checkpoint directory describes, with random weights.

    Args:
        directory: a directory with a config.json, which names the class.
        arguments: other values for fields of the config.
    """
    folder = folder_of(directory)
    ours = folder / WEIGHTS
    bounds = _bounds_of_fused(existing(ours)) if os.path.lexists(ours) else bounds_of(folder)
    return instance(folder, class_name(folder), bounds, arguments)


def load_directory(model: nn.Module, directory: StrPath) -> nn.Module:
    """A model like the given one with the weights of a local checkpoint directory; all of them must be there.

    Args:
        model: a model of transformers, which has the config.
        directory: a directory with safetensors, in one file or several; or one that `save_pretrained` wrote.
    """
    folder = folder_of(directory)
    if (folder / RECORD).is_file():
        return from_pretrained(folder, into=model)
    weight_files(folder)
    kind: Any = type(model)
    try:
        found, info = kind.from_pretrained(
            folder, config=model.config, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:
        raise CheckpointError(
            f"{folder} cannot be loaded as {kind.__name__}: {first_line(error)}; {FITTING}"
        ) from error
    wrong = [str(name) for key in ("missing_keys", "mismatched_keys") for name in info.get(key) or ()]
    if wrong:
        raise CheckpointError(f"{folder} does not fit {kind.__name__}: it lacks {shorten(wrong)}; {FITTING}")
    loaded: nn.Module = found
    return loaded


def _match_precision(model: nn.Module, path: Path) -> None:
    """Give every tensor the type that it has in the file."""
    types = {text: dtype for dtype, text in DTYPES.items()}
    with suppress(CheckpointError, KeyError), opened(path) as (file, _):  # loading says what is wrong with the file
        stored = {name: types[file.get_slice(name).get_dtype()] for name in file.keys()}  # noqa: SIM118
        for name, tensor in named_tensors(model).items():
            if tensor.is_floating_point() and name in stored:
                tensor.data = tensor.data.to(stored[name])


def check_directory(target: Path) -> None:
    """Nothing of another model may lie beside the result: transformers would load that."""
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"{target} cannot be written: it is a file; name a directory")
    if not target.parent.is_dir():
        raise CheckpointError(f"{target} cannot be written: there is no folder {target.parent}; create it first")
    if not target.is_dir():
        return
    ours = ours_in(target)
    foreign = sorted(
        p.name
        for p in target.iterdir()
        if p.suffix in (".safetensors", ".bin") or p.name.endswith(".index.json")
        if p.name not in ours
    )
    if foreign:
        raise CheckpointError(
            f"{target} cannot be written: it holds the weights of another model ({shorten(foreign)}); name another "
            "directory"
        )


def ours_in(folder: Path) -> set[str]:
    """The names of the files that belong to an earlier result in a directory; none where there is no such result."""
    if not (folder / RECORD).is_file():
        return set()
    shards = read_json(folder / RECORD).get("shards", [])
    return OURS | {name for name in (shards if isinstance(shards, list) else []) if isinstance(name, str)}


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A new directory that takes the place of another once it is complete; other files in that one move along.

    The system cannot exchange directories in one step: a process that is killed between two leaves the earlier one
    under a name that ends in .old, and the next writer moves it back first.
    """
    try:
        put_back(target)
        with claimed(target, folder=True) as temporary:
            keep_others(target, temporary)
            yield temporary
            exchange(temporary, target)
    except OSError as error:
        raise CheckpointError(
            f"{target} cannot be written: {error.strerror or error}; free some space or choose another folder. What "
            "was there before is unchanged"
        ) from error


def keep_others(target: Path, new: Path) -> None:
    """Copy what is in a directory beside an earlier result, and not in the one that will take its place, into that."""
    if target.is_dir():
        shutil.copystat(target, new)
        ours = OURS | ours_in(target)
        for item in target.iterdir():
            if item.name not in ours and not os.path.lexists(new / item.name):
                (shutil.copytree if item.is_dir() else shutil.copy2)(item, new / item.name)


def exchange(new: Path, target: Path) -> None:
    """Put a new directory in the place of another; where that fails, the other one is put back."""
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    if target.is_dir():
        os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:
        if old.is_dir():
            os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def put_back(target: Path) -> None:
    """Put a directory back that a killed process was about to replace, or remove it where that was done."""
    for left in set_aside(target):
        if target.exists():
            shutil.rmtree(left)
        else:
            os.replace(left, target)
