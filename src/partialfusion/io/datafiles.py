"""Batches of inputs from files, with or without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.scalars import LARGEST
from ..core.text import shorten
from ..errors import CheckpointError, DataError, OptionError
from .bounds import OversizeError, check_archive, check_tensors
from .checkpoints import read_safetensors, read_torch
from .files import SUFFIX as SAFE
from .files import StrPath, existing

NUMPY = (".npy", ".npz")
LABELS = "labels"


Examples = Tensor | Sequence[Tensor] | Mapping[str, Tensor]  # example inputs of a model


def load_batches(path: StrPath, batch_size: int, *, like: Examples | None) -> list[Any]:
    """The inputs in a file, in batches as `torch.split` gives them; a last sample on its own joins the batch before it.

    Args:
        path: a .npy, .npz, .safetensors or torch file that holds a (samples × …) tensor for each input of the model.
            Several inputs are in the order of an .npz or torch file, and sorted by name in a safetensors file; keyword
            inputs are found by their names.
        batch_size: the number of samples in a batch.
        like: example inputs of the model; floating-point data is converted to their types. None: the model has one
            input, and floating-point data becomes PyTorch's default type.

    Returns:
        Tensors, or tuples of tensors if the model takes several inputs; mappings of tensors for keyword inputs.
    """
    found = _tensors_within(existing(path))
    if isinstance(like, Mapping):
        return _named_batches(found, list(like), batch_size, like, path)
    likes = _likes(like)
    if len(found) != len(likes):
        expected = "one tensor, or a dict with one tensor" if len(likes) == 1 else f"{len(likes)} tensors"
        expected += ", or give --input SHAPE for each input" if like is None else ""
        raise DataError(
            f"{path} holds {len(found)} tensors ({shorten(list(found))}) where the model takes {len(likes)} input(s): "
            f"save {expected}"
        )
    inputs = [_fitted(tensor, one, path) for tensor, one in zip(found.values(), likes, strict=True)]
    parts = _split(inputs, batch_size, path)
    return parts if len(likes) > 1 else [x for (x,) in parts]


def load_labelled(path: StrPath, batch_size: int, *, like: Examples | None) -> list[Any]:
    """The inputs and labels in a file, split into batches as `load_batches` does.

    Args:
        path: a .npz, .safetensors or torch file as for `load_batches`, with one more tensor: the class indices, named
            "labels", or else the last tensor.
        batch_size: the number of samples in a batch.
        like: example inputs of the model, as for `load_batches`.

    Returns:
        (input, …, labels) for each batch, with labels of type int64; with keyword inputs a mapping with "labels".
    """
    found = _tensors_within(existing(path))
    if isinstance(like, Mapping):
        return _named_batches(found, [*like, LABELS], batch_size, like, path)
    likes = _likes(like)
    if len(found) != len(likes) + 1:
        raise DataError(
            f"{path} holds {len(found)} tensor(s) ({shorten(list(found))}) where {len(likes)} input(s) and labels are "
            "expected: save them together, as with numpy.savez(file, x=…, labels=…)"
        )
    labels = _indices(found.pop(LABELS if LABELS in found else list(found)[-1]), path)
    inputs = [_fitted(tensor, one, path) for tensor, one in zip(found.values(), likes, strict=True)]
    return _split([*inputs, labels], batch_size, path)


def _named_batches(
    found: Mapping[str, Tensor], names: Sequence[str], batch_size: int, like: Mapping[str, Tensor], path: StrPath
) -> list[dict[str, Tensor]]:
    """Batches of the tensors of some names."""
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(
            f"{path} holds {shorten(list(found)) or 'no tensor'} and lacks {', '.join(missing)}: save the inputs under "
            "the names that --input gives"
        )
    parts = [_fitted(found[n], like[n], path) if n in like else _indices(found[n], path) for n in names]
    return [dict(zip(names, batch, strict=True)) for batch in _split(parts, batch_size, path)]


def _indices(labels: Tensor, path: StrPath) -> Tensor:
    if labels.is_floating_point() or labels.is_complex():
        raise DataError(
            f"{path} holds labels of type {labels.dtype} and shape {tuple(labels.shape)}: save class indices"
        )
    return labels.to(torch.int64)


def _split(tensors: Sequence[Tensor], batch_size: int, path: StrPath) -> list[tuple[Tensor, ...]]:
    if not 1 <= batch_size <= LARGEST:
        raise OptionError(f"batch size {batch_size}: a batch needs at least one sample, and at most {LARGEST}")
    lengths = {len(x) if x.ndim else 0 for x in tensors}
    if len(lengths) > 1:
        raise DataError(f"{path} holds tensors of {sorted(lengths)} samples: all must have the same number")
    parts = [list(x.split(batch_size)) for x in tensors]
    if len(parts[0]) > 1 and len(parts[0][-1]) == 1 < batch_size:  # batch norms cannot measure a single sample
        parts = [[*some[:-2], torch.cat(some[-2:])] for some in parts]
    return list(zip(*parts, strict=True))


def _likes(like: Tensor | Sequence[Tensor] | None) -> list[Tensor | None]:
    """One example for each input; None where only their number is known, which is one."""
    return [like] if like is None or isinstance(like, Tensor) else list(like)


def _fitted(tensor: Tensor, like: Tensor | None, path: StrPath) -> Tensor:
    if tensor.ndim == 0 or len(tensor) == 0:
        raise DataError(f"{path} holds no samples: its tensor has shape {tuple(tensor.shape)}")
    if like is None:
        return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
    if tensor.is_floating_point() != like.is_floating_point():
        raise DataError(f"{path} holds {tensor.dtype} where the model takes {like.dtype}; save the data in that type")
    return tensor.to(like.dtype)


def _tensors_within(path: Path) -> dict[str, Tensor]:
    try:
        found = _arrays(path) if path.suffix in NUMPY else _named(path)
        check_tensors(found, path)
    except OversizeError as error:
        raise DataError(f"{path} {error}") from error
    return found


def _named(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or torch file."""
    try:
        content = read_safetensors(path) if path.suffix == SAFE else read_torch(path)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    if isinstance(content, Tensor):
        return {"tensor": content}
    if isinstance(content, (list, tuple)):
        content = {str(k): value for k, value in enumerate(content)}
    if not isinstance(content, Mapping):
        return {}
    names = sorted(content) if path.suffix == SAFE else list(content)
    return {str(name): content[name] for name in names if isinstance(content[name], Tensor)}


def _arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of a NumPy file. A single one is mapped, which compares its shape with the size of the file."""
    try:
        check_archive(path)
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(content, np.ndarray):
            return {"array": _native(np.array(content))}
        with content:
            return {name: _native(content[name]) for name in content.files}
    except OversizeError:
        raise
    except Exception as error:  # NumPy, zipfile, zlib and the tokenizer of Python each have errors of their own
        function = "numpy.savez" if path.suffix == ".npz" else "numpy.save"
        raise DataError(f"{path} is not a {path.suffix} file of numbers; save the array with {function}") from error


def _native(array: np.ndarray) -> Tensor:
    """The tensor of an array in memory; other machines may have written its bytes in the other order."""
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
