"""Files in tar.gz archives, whatever an archive says of itself."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from partialfusion.errors import DataError

from .files import LARGEST

RATIO = 32  # bytes that a byte of an archive may become; those of CIFAR-10 become 1.1
MOST = 1000  # members of an archive; those of the data sets have about ten
WITHOUT_DATA = (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
OTHER = b"-"  # a kind that nobody uses: of such a member, tarfile skips the data


class _Header(tarfile.TarInfo):
    """The header of a member, for what it is without other headers. tarfile would read extended headers whole, and
    sparse files as large as they say; both are of another kind here."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, *WITHOUT_DATA):
            found.type = OTHER
        return found


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The names and contents of some files in an archive, one after the other; nothing is unpacked to the disk.

    Args:
        path: the archive.
        wanted: whether a file of a name is wanted.
    """
    end = LARGEST + RATIO * os.path.getsize(path)
    try:
        with tarfile.open(path, "r:gz", tarinfo=_Header) as archive:
            for number, member in enumerate(archive):
                if number == MOST:
                    raise DataError(f"{path} holds more than {MOST} files, which no archive of a data set does")
                if not 0 <= member.size <= end - member.offset_data:
                    raise DataError(f"{path}: {member.name} ends beyond what such an archive can hold; copy it again")
                if not (member.isfile() and wanted(member.name)):
                    continue
                if member.size > LARGEST:
                    raise DataError(f"{path}: {member.name} has {member.size} bytes, which no file of a data set has")
                packed = archive.extractfile(member)
                yield member.name, packed.read() if packed else b""
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
        raise DataError(f"{path} is truncated or not a tar.gz file ({error}); copy it again") from error
