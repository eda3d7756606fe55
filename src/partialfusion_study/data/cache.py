"""The cache: one safetensors file per data set, checked whenever it is read."""

from __future__ import annotations

import os
from pathlib import Path

from partialfusion.errors import CheckpointError, DataError
from partialfusion.io.files import SUFFIX, reading, replacing, write_tensors

from .images import TITLES, DataName, DataSet, checksum, from_tensors, tensors
from .published import PUBLISHED

NAMES = ("train_images", "train_labels", "test_images", "test_labels")


def home() -> Path:
    """The folder of the cache: PARTIALFUSION_CACHE, else `partialfusion` in the user's cache folder."""
    chosen = os.environ.get("PARTIALFUSION_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    standard = os.environ.get("XDG_CACHE_HOME")
    return (Path(standard) if standard and os.path.isabs(standard) else Path.home() / ".cache") / "partialfusion"


def checkpoints() -> Path:
    """The folder of trained networks in the cache."""
    return home() / "checkpoints"


def make(folder: Path) -> None:
    """Create a folder of the cache, where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be created: {error.strerror or error}; set PARTIALFUSION_CACHE to another folder"
        ) from error


def path(name: DataName, folder: Path) -> Path:
    """The file of a data set in a cache."""
    return folder / f"{name}{SUFFIX}"


def read(name: DataName, folder: Path) -> DataSet | None:
    """The data set, or None where it is not in the cache; raises DataError where the file is damaged.

    The tensors are mapped from the file, so processes on one machine use the same memory.
    """
    file = path(name, folder)
    if not os.path.isfile(file):
        return None
    try:
        with reading(file) as stored:
            if sorted(stored.keys()) != sorted(NAMES):
                raise DataError(f"it does not contain {', '.join(NAMES)}")
            data = from_tensors(name, {part: stored.get_tensor(part) for part in NAMES})
        if checksum(data) != PUBLISHED[name].sha256:
            raise DataError(f"it does not have the checksum of {TITLES[name]}")
    except CheckpointError as error:
        raise DataError(f"{file} is damaged: truncated or not a safetensors file") from error
    except DataError as error:
        raise DataError(f"{file} is damaged: {error}") from error
    return data


def write(data: DataSet, name: DataName, folder: Path) -> None:
    """Write a data set to the cache atomically: other processes read the old file or the new one."""
    make(folder)
    with replacing(path(name, folder)) as file:
        write_tensors(file, tensors(data), {"data": name, "sha256": checksum(data)})
