"""Text as bytes, in two domains: Python's standard library, and English novels."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Literal
from zlib import crc32

import torch
from torch import Tensor

from partialfusion.errors import CheckpointError, DataError
from partialfusion.io.digest import digest
from partialfusion.io.files import SUFFIX, reading, replacing, write_tensors

from . import cache, novels, stdlib
from .files import content

log = logging.getLogger(__name__)

Domain = Literal["python", "prose"]
DOMAINS: tuple[Domain, ...] = ("python", "prose")
HELD_OUT = 20  # the held-out files have at least one byte in so many
ENDINGS: dict[Domain, str] = {"python": ".py", "prose": ".txt"}  # of files in a user's folder
TITLES: dict[Domain, str] = {
    "python": "the standard library of Python 3.11.7",
    "prose": f"the novels in the Debian package {novels.PACKAGE}",
}
CHECKSUMS: dict[Domain, str] = {  # of the texts behind the committed results
    "python": "6d52bbbb2856a9e5d5806b142b1e700b82e1b342381b896710c0b617bf3e6f98",
    "prose": "1ce8d12fbd682f3fac762fa6a8e472685ded91ea106eaf79c4810aa1deee357c",
}

_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class Text:
    """The bytes of one domain (uint8), the files one after the other; no file is in both parts."""

    train: Tensor
    test: Tensor


def load_text(domain: Domain, folder: Path | None = None) -> Text:
    """The text of a domain, read once per process.

    Args:
        domain: "python" or "prose".
        folder: a folder whose subfolder with the name of the domain contains .py or .txt files. Default: the
            environment variable PARTIALFUSION_DATA, where it has that subfolder. Otherwise the text comes from the
            cache, and into it from the running interpreter or from a Debian package.
    """
    chosen = folder or os.environ.get("PARTIALFUSION_DATA") or None
    given = Path(chosen).expanduser().absolute() / domain if chosen else None
    if folder is None and given is not None and not os.path.isdir(given):
        given = None
    with _LOCK:
        return _load(domain, given, cache.home())


def is_published(domain: Domain) -> bool:
    """Whether the text is the one behind the committed results."""
    return checksum(load_text(domain)) == CHECKSUMS[domain]


def checksum(text: Text) -> str:
    """SHA-256 of both parts."""
    return digest(_tensors(text).items())


@lru_cache(maxsize=8)
def _load(domain: Domain, given: Path | None, home: Path) -> Text:
    if given is not None:
        return split(files(given, ENDINGS[domain]), str(given))
    path = home / f"text-{domain}{SUFFIX}"
    if path.is_file():
        try:
            with reading(path) as stored:
                return Text(stored.get_tensor("train"), stored.get_tensor("test"))
        except CheckpointError as error:
            log.warning("%s; reading the text again", error)
    text = split(stdlib.files(), "the standard library") if domain == "python" else split(novels.files(), "the novels")
    try:
        cache.make(home)
        with replacing(path) as file:
            write_tensors(file, _tensors(text), {"data": domain, "python": platform.python_version()})
    except CheckpointError as error:
        log.warning("the text cannot be cached and will be read again next time: %s", error)
    return text


def split(files: Mapping[str, bytes], what: str) -> Text:
    """Held-out files and the others, by a hash of their names; the order is that of the hashes."""
    names = sorted(files, key=lambda name: (crc32(os.fsencode(name)), name))
    total, held = sum(map(len, files.values())), 0
    test: list[str] = []
    for name in names:
        if held * HELD_OUT >= total:
            break
        test.append(name)
        held += len(files[name])
    parts = [b"\n".join(files[n] for n in some) for some in (names[len(test) :], test)]
    if not all(parts):
        raise DataError(
            f"{what}: {len(names)} files, of which none is left for training; at least two with text are needed"
        )
    train, held_out = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts)
    return Text(train, held_out)


def files(folder: Path, ending: str) -> dict[str, bytes]:
    """The path inside a folder and the content of every file there whose name ends so."""
    if not os.path.isdir(folder):
        raise DataError(f"{folder} is not a folder, so no text can be read from it; check the name")
    return {path.relative_to(folder).as_posix(): content(path) for path in sorted(folder.rglob(f"*{ending}"))}


def _tensors(text: Text) -> dict[str, Tensor]:
    return {"train": text.train, "test": text.test}
