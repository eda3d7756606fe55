"""MNIST and CIFAR-10: from a folder of the user, or downloaded once into a cache and verified by checksums."""

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

_LOCK = Lock()  # threads that load at the same time wait for one download


def load(name: DataName, folder: Path | None = None) -> DataSet:
    """A data set, read once per process.

    Args:
        name: "mnist" (1 × 28 × 28) or "cifar10" (3 × 32 × 32).
        folder: a folder with the data in one of its usual formats; no other source is tried. Default: the environment
            variable PARTIALFUSION_DATA. Without either, the data comes from the cache (PARTIALFUSION_CACHE, else
            `partialfusion` in the user's cache folder), and is downloaded into it if necessary.
    """
    if name not in PUBLISHED:
        raise OptionError(f"data set {name!r} is not known: choose one of {', '.join(PUBLISHED)}")
    chosen = folder or os.environ.get("PARTIALFUSION_DATA") or None
    with _LOCK:
        return _load(name, Path(chosen).expanduser().absolute() if chosen else None, cache.home())


@lru_cache(maxsize=8)
def _load(name: DataName, folder: Path | None, home: Path) -> DataSet:
    return sources.given(name, folder) if folder else sources.found(name, home)
