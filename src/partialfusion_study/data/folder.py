"""A data set from a folder that holds it in any of the usual forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from partialfusion.errors import DataError

from . import batches, idx, sheets
from .images import DataName, DataSet


@dataclass(frozen=True)
class Form:
    """One way in which a data set is stored.

    Attributes:
        title: for messages.
        files: all of them are needed.
        places: folders below the one given in which they may stand.
        read: the data set from the path of each file.
    """

    title: str
    files: tuple[str, ...]
    places: tuple[str, ...]
    read: Callable[[Mapping[str, Path]], DataSet]


CIFAR_PLACES = ("", "cifar10", "CIFAR10", "cifar-10", "package")
FORMS: dict[DataName, tuple[Form, ...]] = {
    "mnist": (
        Form(
            "IDX files, plain or .gz",
            idx.FILES,
            ("", "MNIST/raw", "raw", "mnist", "MNIST", "mnist/MNIST/raw", "data", "package/data"),
            idx.read,
        ),
    ),
    "cifar10": (
        Form(
            "binary version",
            batches.FILES,
            tuple(f"{place}{below}".lstrip("/") for place in CIFAR_PLACES for below in ("", "/cifar-10-batches-bin")),
            batches.read,
        ),
        Form("archive of the binary version", (batches.ARCHIVE,), CIFAR_PLACES, batches.read_archive),
        Form("PNG sheets", sheets.FILES, CIFAR_PLACES, sheets.read),
    ),
}


def read(name: DataName, folder: Path) -> DataSet:
    """The data set in the first form of it that the folder holds whole."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder to take {name} from; check the name")
    for form in FORMS[name]:
        for place in form.places:
            found = _found(form, folder / place)
            if len(found) == len(form.files):
                return form.read(found)
    raise DataError(_nothing(name, folder))


def _found(form: Form, folder: Path) -> dict[str, Path]:
    """Where each file of a form stands in a folder; those that are not there are left out."""
    paths = {name: next((path for path in _spellings(folder, name) if path.is_file()), None) for name in form.files}
    return {name: path for name, path in paths.items() if path is not None}


def _spellings(folder: Path, name: str) -> tuple[Path, ...]:
    """IDX files are found packed, and with a dot in place of the second dash as well."""
    if name not in idx.FILES:
        return (folder / name,)
    dotted = name.replace("-idx", ".idx")
    return tuple(folder / spelling for spelling in (name, f"{name}.gz", dotted, f"{dotted}.gz"))


def _nothing(name: DataName, folder: Path) -> str:
    """What was looked for and where, and what is missing where some of it was found."""
    lines = [f"{folder} does not hold {name}; looked for"]
    for form in FORMS[name]:
        places = ", ".join(place or "the folder itself" for place in form.places)
        lines.append(f"  {form.title}: {', '.join(form.files)} (in {places})")
        for place in form.places:
            found = _found(form, folder / place)
            if found:
                missing = [file for file in form.files if file not in found]
                lines.append(f"    {folder / place} lacks {', '.join(missing)}")
    if name == "cifar10" and any((folder / place / "cifar-10-batches-py").is_dir() for place in CIFAR_PLACES):
        lines.append("  cifar-10-batches-py holds pickles, which can run code and are not read")
    lines.append("put the files there, or give no folder to have them fetched")
    return "\n".join(lines)
