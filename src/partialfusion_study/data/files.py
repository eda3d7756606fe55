"""Reading the bytes of a file, packed or plain, with errors that name it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partialfusion.errors import DataError


def content(path: Path) -> bytes:
    """The bytes of a file; of a `.gz` file what is packed in it."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or not a gzip file ({error}); copy it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check the permissions") from error


def as_bytes(raw: bytes, offset: int = 0) -> Tensor:
    """The bytes from an offset on as a uint8 tensor (n,) with memory of its own."""
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=offset).copy())
