"""A data set from a folder that contains it in any of the usual formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from partialfusion.errors import DataError

from . import formats
from .images import TITLES, DataName, DataSet


@dataclass(frozen=True)
class Format:
    """A format in which a data set is stored.

    Attributes:
        title: a name for messages.
        files: names of the files, all of which are needed.
        places: subfolders in which the files may be.
        read: reads the data set, given the path of each file.
    """

    title: str
    files: tuple[str, ...]
    places: tuple[str, ...]
    read: Callable[[Mapping[str, Path]], DataSet]


CIFAR_PLACES = ("", "cifar10", "CIFAR10", "cifar-10", "package")
FORMATS: dict[DataName, tuple[Format, ...]] = {
    "mnist": (
        Format(
            "IDX files, plain or .gz",
            formats.IDX_FILES,
            ("", "MNIST/raw", "raw", "mnist", "MNIST", "mnist/MNIST/raw", "data", "package/data"),
            formats.read_idx,
        ),
    ),
    "cifar10": (
        Format(
            "binary version",
            formats.BINARY_FILES,
            tuple(f"{place}{below}".lstrip("/") for place in CIFAR_PLACES for below in ("", "/cifar-10-batches-bin")),
            formats.read_binary,
        ),
        Format("archive of the binary version", (formats.ARCHIVE,), CIFAR_PLACES, formats.read_archive),
        Format("PNG sheets", formats.SHEET_FILES, CIFAR_PLACES, formats.read_sheets),
    ),
}


def read(name: DataName, folder: Path) -> DataSet:
    """The data set in the first format of which the folder contains all files."""
    if not os.path.isdir(folder):
        raise DataError(f"{folder} is not a folder, so {TITLES[name]} cannot be read from it; check the name")
    for known in FORMATS[name]:
        for place in known.places:
            found = _found(known, folder / place)
            if len(found) == len(known.files):
                return known.read(found)
    raise DataError(_not_found(name, folder))


def _found(known: Format, folder: Path) -> dict[str, Path]:
    """The paths of those files of a format that are in a folder."""
    paths = {
        name: next((path for path in _spellings(folder, name) if os.path.isfile(path)), None) for name in known.files
    }
    return {name: path for name, path in paths.items() if path is not None}


def _spellings(folder: Path, name: str) -> tuple[Path, ...]:
    """IDX files are also found packed, and with a dot in place of the second dash."""
    if name not in formats.IDX_FILES:
        return (folder / name,)
    dotted = name.replace("-idx", ".idx")
    return tuple(folder / spelling for spelling in (name, f"{name}.gz", dotted, f"{dotted}.gz"))


def _not_found(name: DataName, folder: Path) -> str:
    """The message: which files were looked for, in which places, and which are missing where some were found."""
    lines = [f"{folder} does not contain {TITLES[name]}; looked for"]
    for known in FORMATS[name]:
        places = ", ".join(place or "the folder itself" for place in known.places)
        lines.append(f"  {known.title}: {', '.join(known.files)} (in {places})")
        for place in known.places:
            found = _found(known, folder / place)
            if found:
                missing = [file for file in known.files if file not in found]
                lines.append(f"    {folder / place} lacks {', '.join(missing)}")
    if name == "cifar10" and any((folder / place / "cifar-10-batches-py").is_dir() for place in CIFAR_PLACES):
        lines.append("  cifar-10-batches-py contains pickles, which can run code and are not read")
    lines.append("copy the files there, or give no folder to download them")
    return "\n".join(lines)
