"""CIFAR-10's published binary version: six files of rows, each a label and the 3 × 32 × 32 bytes of its image."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import torch

from partialfusion.errors import DataError

from .files import as_bytes, content
from .images import DataSet, Images, labelled

SHAPE = (3, 32, 32)
ROW = 1 + 3 * 32 * 32
TRAIN = tuple(f"data_batch_{k}.bin" for k in range(1, 6))
TEST = "test_batch.bin"
FILES = (*TRAIN, TEST)
ARCHIVE = "cifar-10-binary.tar.gz"


def read(paths: Mapping[str, Path]) -> DataSet:
    """The data set from the paths of `FILES`."""
    return _parsed({name: content(path) for name, path in paths.items()}, paths)


def read_archive(paths: Mapping[str, Path]) -> DataSet:
    """The data set from the archive; nothing of it is written to the disk."""
    path = paths[ARCHIVE]
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in FILES and member.isfile():
                    packed = archive.extractfile(member)
                    found[name] = packed.read() if packed else b""
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path} is truncated or not a tar.gz file ({error}); copy it again") from error
    missing = [name for name in FILES if name not in found]
    if missing:
        raise DataError(f"{path} does not hold {', '.join(missing)}; take the binary version of CIFAR-10")
    return _parsed(found, {name: path / name for name in FILES})


def _parsed(raw: Mapping[str, bytes], paths: Mapping[str, Path]) -> DataSet:
    parts = {name: _rows(raw[name], paths[name]) for name in FILES}
    return DataSet("cifar10", joined([parts[name] for name in TRAIN]), parts[TEST])


def _rows(raw: bytes, path: Path) -> Images:
    if len(raw) % ROW:
        raise DataError(f"{path} holds {len(raw)} bytes, not a multiple of the {ROW} of a row; copy it again")
    rows = as_bytes(raw).reshape(-1, ROW)
    return labelled(rows[:, 1:].contiguous().reshape(-1, *SHAPE), rows[:, 0], str(path))


def joined(parts: Sequence[Images]) -> Images:
    """All images, one part after the other."""
    return Images(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
