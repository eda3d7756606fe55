"""Files that are written whole or not at all, and the safetensors format."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointError
from .digest import chunks

SUFFIX = ".safetensors"
StrPath = str | os.PathLike[str]

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def existing(path: StrPath) -> Path:
    """The path of a file that can be read and is not empty."""
    path = Path(path)
    if os.path.isdir(path):
        raise CheckpointError(f"{path} is a folder; name the file in it")
    try:
        with open(path, "rb") as file:
            empty = not file.read(1)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file; check the name and the folder") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {_reason(error)}; check the name and the permissions") from error
    if empty:
        raise CheckpointError(f"{path} is empty; save or copy it again")
    return path


def check_target(path: StrPath, *, suffixes: Sequence[str] = (), keep: Sequence[StrPath] = ()) -> Path:
    """The path, or an error before any work is done, where `replacing` could not write a file there.

    Args:
        path: the file to write.
        suffixes: the suffixes that its name may have; any if none are given.
        keep: files that must not be overwritten, such as the inputs.
    """
    path = Path(path)
    if suffixes and path.suffix not in suffixes:
        *others, last = suffixes
        allowed = f"{', '.join(others)} or {last}" if others else last
        raise CheckpointError(f"{path} cannot be written: its name must end in {allowed}")
    if os.path.isdir(path):
        raise CheckpointError(f"{path} cannot be written: it is a folder; name a file in it")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise CheckpointError(f"{path} cannot be written: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CheckpointError(f"{path} cannot be written: no permission in {folder}; choose another folder")
    for other in keep:
        if os.path.exists(other) and os.path.exists(path) and os.path.samefile(path, other):
            raise CheckpointError(f"{path} is an input and would be overwritten; choose another output file")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces the path in one step, once it is complete and on the disk.

    Until then it has a temporary name in the same folder. It is removed if writing fails; a process that is killed
    leaves it behind, where it does no harm.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
        _flush_folder(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {_reason(error)}; free some space or choose another folder. A file "
            "that was there before is unchanged"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _flush_folder(folder: Path) -> None:
    """Make the new name survive a power failure, on systems where folders can be flushed."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the safetensors format: the length of the header, the header, the bytes of the tensors.

    The writer of the safetensors package opens the file itself, with permissions that depend on its version; the
    format is simple, and reading is left to the package.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # keeps every tensor aligned
    at = 0
    for name in order:
        tensor = tensors[name]
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        for part in chunks(tensors[name]):
            file.write(part)


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """A safetensors file, opened; what the safetensors package finds wrong with it becomes a CheckpointError."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file; save or copy it again") from error
