"""Chapters and their index as files in a folder, each written atomically."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from partialfusion.errors import OptionError
from partialfusion.io.files import replacing

from . import figures, markdown
from .document import INDEX, Chapter, Entry, Figure, check_distinct


def write_chapter(chapter: Chapter, folder: Path) -> list[Path]:
    """Write `<name>.md` and a `<name>-<figure>.png` for each figure; returns the paths, the page first.

    The page is written last, so that it never refers to a missing picture.
    """
    drawn = [part for part in chapter.parts if isinstance(part, Figure)]
    check_distinct("figures", [part.name for part in drawn])
    pictures = {folder / markdown.picture_name(chapter, part): figures.png(part) for part in drawn}
    page = folder / f"{chapter.name}.md"
    for path, content in (*pictures.items(), (page, markdown.chapter(chapter).encode())):
        _write(path, content)
    return [page, *pictures]


def write_index(entries: Iterable[Entry], folder: Path, *, title: str = "Results", text: str = "") -> Path:
    """Write README.md: the chapters with their place in the paper, one finding each, and the verdicts."""
    entries = tuple(entries)
    check_distinct("chapters", [entry.name for entry in entries])
    path = folder / f"{INDEX}.md"
    _write(path, markdown.index(entries, title=title, text=text).encode())
    return path


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{path.parent} cannot be created: {error.strerror}; choose another folder") from error
    with replacing(path) as file:
        file.write(content)
