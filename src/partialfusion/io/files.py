"""Files that are written whole or not at all, and the safetensors format."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointError
from .digest import chunks
from .temporary import claimed

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


def existing(path: StrPath, *, empty: bool = False) -> Path:
    """The path of a regular file that can be read; pipes and devices are refused without waiting.

    Args:
        path: the file.
        empty: whether it may be empty.
    """
    path = _path(path)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{path} is {_kind(found.st_mode)}; name the file{_inside(found.st_mode)}")
        with open(path, "rb"):
            pass
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file; check the name and the folder") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {_reason(error)}; check the name and the permissions") from error
    if not found.st_size and not empty:
        raise CheckpointError(f"{path} is empty; save or copy it again")
    return path


def is_plain_name(name: str) -> bool:
    """Whether a name can only be that of a file in the same folder."""
    return name == PurePath(name).name and name not in ("", ".", "..") and not set(name) & set("\\\0\n")


def check_target(path: StrPath, *, suffixes: Sequence[str] = (), keep: Sequence[StrPath] = ()) -> Path:
    """The path, or an error before any work is done, where `replacing` could not write a file there.

    Args:
        path: the file to write. Of a link, what it leads to is written, and must have such a suffix too.
        suffixes: the suffixes that its name may have; any if none are given.
        keep: files that must not be overwritten, such as the inputs, and folders of such files.
    """
    path = _path(path)
    *others, last = suffixes or ("",)
    allowed = f"{', '.join(others)} or {last}" if others else last
    if suffixes and path.suffix not in suffixes:
        raise CheckpointError(f"{path} cannot be written: its name must end in {allowed}")
    target = destination(path)
    if target.exists() and any(os.path.samefile(target, other) for other in _files(keep)):
        raise CheckpointError(f"{path} is an input and would be overwritten; choose another output file")
    if suffixes and target.suffix not in suffixes:
        raise CheckpointError(f"{path} cannot be written: it leads to {target}, whose name must end in {allowed}")
    folder = target.parent
    if not os.path.isdir(folder):
        raise CheckpointError(f"{path} cannot be written: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CheckpointError(f"{path} cannot be written: no permission in {folder}; choose another folder")
    return path


def destination(path: StrPath) -> Path:
    """Where a path leads, through links: nothing yet, or a regular file, which may be replaced."""
    path = _path(path)
    try:
        target = Path(os.path.realpath(path))
        mode = os.stat(target).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if not os.path.isabs(path) and not _has_current_folder():
            raise CheckpointError(f"{path} cannot be written: the current folder does not exist any more") from error
        return target
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be written: {_reason(error)}; choose another name") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path} cannot be written: it is {_kind(mode)}; name a file{_inside(mode)}")
    return target


def _path(path: StrPath) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise CheckpointError(f"{path!r} is no path of a file; pass its name")
    return Path(path)


def _files(keep: Sequence[StrPath]) -> Iterator[str]:
    """The files that exist among the given ones, and directly in the folders among them."""
    for path in keep:
        if os.path.isdir(path):
            with suppress(OSError):
                yield from (entry.path for entry in os.scandir(path) if entry.is_file())
        elif os.path.exists(path):
            yield os.fspath(path)


def _has_current_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for is_one, name in kinds if is_one(mode)), "a device")


def _inside(mode: int) -> str:
    return " in it" if stat.S_ISDIR(mode) else ""


class _NotedFile(io.FileIO):
    """A file that remembers why writing failed, because code that writes to it may raise an error of its own."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces the path in one step, once it is complete and on the disk.

    Until then it has a temporary name in the same folder. It is removed if writing fails; where the process is killed,
    the next one that writes this path removes it. Only a regular file is ever replaced: of a link, what it leads to.
    """
    raw: _NotedFile | None = None
    try:
        with claimed(destination(path)) as temporary:
            raw = _NotedFile(temporary, "w")
            with io.BufferedWriter(raw) as file:
                yield cast(BinaryIO, file)
                file.flush()
                os.fsync(file.fileno())
            target = destination(path)
            with suppress(FileNotFoundError):
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
            _flush_folder(target.parent)
    except Exception as error:
        failure = error if isinstance(error, OSError) else None if raw is None else raw.failure
        if failure is None:
            raise
        raise CheckpointError(
            f"{path} cannot be written: {_reason(failure)}; free some space or choose another folder. A file "
            "that was there before is unchanged"
        ) from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _flush_folder(folder: Path) -> None:
    """Make the new name survive a power failure, on systems where folders can be flushed."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_tensors(
    file: BinaryIO,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    content: Callable[[str], Iterable[Tensor]] | None = None,
) -> None:
    """Write the safetensors format: the length of the header, the header, the bytes of the tensors.

    The writer of the safetensors package opens the file itself, with permissions that depend on its version; the
    format is simple, and reading is left to the package.

    Args:
        file: the file.
        tensors: name → tensor. With `content` only types and shapes count, and they may be on the meta device.
        metadata: texts for the header.
        content: gives the numbers of a tensor when its turn comes, in row-major order and as many parts as it likes, so
            that they are never in memory all at once.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in file_order(tensors):
        tensor = tensors[name]
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in file_order(tensors):
        for part in [tensors[name]] if content is None else content(name):
            for chunk in chunks(part):
                file.write(chunk)


def file_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """The order of tensors in a file, which keeps every one of them aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """A safetensors file, opened; what the safetensors package finds wrong with it becomes a CheckpointError."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{path} cannot be read: its name is not UTF-8; rename it") from error
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file; save or copy it again") from error
