"""Files from a mirror on the web, each refused unless it has its checksum."""

from __future__ import annotations

import hashlib
import logging
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from partialfusion.errors import DataError

from .published import Mirror

log = logging.getLogger(__name__)

TIMEOUT = 10.0  # seconds without a byte, to connect or later
CHUNK = 1 << 20
STEP = 1 << 25  # bytes between two lines of the log


def fetch(mirror: Mirror, into: Path) -> None:
    """Fill a folder with all files of a mirror."""
    for name, md5 in mirror.files.items():
        found = _download(mirror.address + name, into / name)
        if found != md5:
            raise DataError(f"{name} has the MD5 {found}, not {md5}")


def _download(address: str, path: Path) -> str:
    """Write what the address gives to a path; its MD5."""
    seen, told, md5 = 0, 0, hashlib.md5(usedforsecurity=False)
    log.info("fetching %s", address)
    try:
        with urlopen(address, timeout=TIMEOUT) as answer, open(path, "wb") as file:
            while part := answer.read(CHUNK):
                file.write(part)
                md5.update(part)
                seen += len(part)
                if seen - told >= STEP:
                    told = seen
                    log.info("%s: %d MB so far", address, seen >> 20)
    except (OSError, HTTPException, ValueError) as error:  # urllib's own errors are OSErrors
        raise DataError(f"{path.name}: {error or type(error).__name__}") from error
    return md5.hexdigest()
