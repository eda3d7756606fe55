"""English prose: Jane Austen's six novels, from a Debian package that holds them for R."""

from __future__ import annotations

import io
import logging
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from partialfusion.errors import DataError

log = logging.getLogger(__name__)

PACKAGE = "r-cran-janeaustenr"
MEMBER = "./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
TIMEOUT = 300.0  # seconds
HEADER = b"X\n\0\0\0\3"  # R's binary format, version 3
STRINGS, STRING = 16, 9  # types of R's objects: a vector of strings, a string


def files() -> dict[str, bytes]:
    """The title of every novel, and its text; the package is downloaded by the system's own client."""
    with tempfile.TemporaryDirectory(prefix="partialfusion-") as folder:
        try:
            return novels(_member(_download(Path(folder))))
        except DataError as error:
            raise DataError(
                f"could not obtain the novels in the Debian package {PACKAGE}: {error}; give a folder that contains "
                "text files in prose/ with --data FOLDER, or as the environment variable PARTIALFUSION_DATA"
            ) from error


def novels(database: bytes) -> dict[str, bytes]:
    """The vectors of strings in a database of R, by their first string, with a line for each string."""
    found = {}
    for data in _objects(database):
        lines = list(_strings(data))
        found[lines[0].decode()] = b"\n".join(lines)
    return found


def _download(into: Path) -> Path:
    log.info("downloading the Debian package %s", PACKAGE)
    _run(["apt-get", "download", PACKAGE], into)
    found = sorted(into.glob("*.deb"))
    if len(found) != 1:
        raise DataError(f"apt-get wrote {len(found)} packages instead of one")
    return found[0]


def _member(package: Path) -> bytes:
    """The file with the novels; nothing of the package is installed or run."""
    content = _run(["dpkg-deb", "--fsys-tarfile", str(package)], package.parent)
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            member = archive.extractfile(MEMBER)
            return member.read() if member else b""
    except (KeyError, tarfile.TarError) as error:
        raise DataError(f"the package does not contain {MEMBER}") from error


def _run(command: list[str], folder: Path) -> bytes:
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"{command[0]} could not be run: {error}") from error
    if done.returncode:
        message = " ".join(done.stderr.decode(errors="replace").split())[:300]
        raise DataError(f"{command[0]} exited with status {done.returncode}: {message or 'no message'}")
    return done.stdout


def _objects(database: bytes) -> Iterator[bytes]:
    """The serialised objects: each is a length in four bytes and a zlib stream."""
    while database:
        stream = zlib.decompressobj()
        try:
            data = stream.decompress(database[4:])
        except zlib.error as error:
            raise DataError(f"the novels are damaged: {error}") from error
        if len(data) != int.from_bytes(database[:4]):
            raise DataError("the novels are damaged: a length is not right")
        yield data
        database = stream.unused_data


def _strings(data: bytes) -> Iterator[bytes]:
    """The strings of a serialised vector."""

    def number() -> int:
        return int.from_bytes(stream.read(4), signed=True)

    stream = io.BytesIO(data)
    if stream.read(len(HEADER)) != HEADER:
        raise DataError("the novels are not in version 3 of R's binary format")
    stream.read(8)  # the versions of R that wrote it and that can read it
    stream.read(number())  # the name of the encoding
    if number() & 255 != STRINGS:
        raise DataError("the novels are not vectors of strings")
    for _ in range(number()):
        if number() & 255 != STRING:
            raise DataError("the novels are damaged: not a string")
        yield stream.read(max(0, number()))
