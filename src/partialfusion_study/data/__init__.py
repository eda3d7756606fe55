"""MNIST and CIFAR-10, the real ones: from a folder of the user, or fetched once into a cache with checksums."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from threading import Lock

from partialfusion.errors import OptionError

from . import cache, sources
from .images import DataName, DataSet, Images, normalised
from .published import PUBLISHED

__all__ = ["DataName", "DataSet", "Images", "load", "normalised"]

_LOCK = Lock()  # threads that ask at once wait for one fetch


def load(name: DataName, folder: Path | None = None) -> DataSet:
    """A data set, read once per process.

    Args:
        name: "mnist" (1 × 28 × 28) or "cifar10" (3 × 32 × 32).
        folder: holds the data in one of its usual forms, and nothing else is tried; default PARTIALFUSION_DATA of the
            environment. Without either the data comes from the cache (PARTIALFUSION_CACHE, else `partialfusion` in the
            user's folder for caches) or is fetched into it.
    """
    if name not in PUBLISHED:
        raise OptionError(f"data {name!r} is not known: choose one of {', '.join(PUBLISHED)}")
    chosen = folder or os.environ.get("PARTIALFUSION_DATA") or None
    with _LOCK:
        return _load(name, Path(chosen).expanduser().absolute() if chosen else None, cache.home())


@lru_cache(maxsize=8)
def _load(name: DataName, folder: Path | None, home: Path) -> DataSet:
    return sources.given(name, folder) if folder else sources.found(name, home)
