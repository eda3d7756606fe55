"""Files that users give to a study: regular ones, up to a size, or one error that names them."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from partialfusion.errors import CheckpointError, DataError
from partialfusion.io.files import existing

LARGEST = 1 << 26  # bytes of a file, unpacked; the training images of MNIST are 47 million


def regular(path: Path) -> Path:
    """The path of a regular file, which may be empty; pipes and devices are refused without waiting."""
    try:
        return existing(path, empty=True)
    except CheckpointError as error:
        raise DataError(str(error)) from error


def content(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of a file; of a `.gz` file, the unpacked bytes."""
    regular(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            raw = file.read(largest + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or not a gzip file ({error}); copy it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check the permissions") from error
    if len(raw) > largest:
        raise DataError(f"{path} holds more than {largest} bytes, which no file of these data sets does")
    return raw
