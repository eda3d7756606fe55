"""Pages in a folder: all files there, links that lead somewhere, whole or not at all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from partialfusion.errors import FusionError, OptionError
from partialfusion_study.report import (
    Chapter,
    Entry,
    Figure,
    Line,
    Panel,
    Table,
    Value,
    markdown,
    write_chapter,
    write_index,
)

TABLE = Table("numbers", "Numbers", ("x", "y"), (("a", Value(1.0, 0.1, 3)),))
PLOT = Figure("plot", "Plot", (Panel("", "x", "y", (Line("a", (0.0, 1.0), (1.0, 2.0)),)),))


def chapter(*parts: Table | Figure) -> Chapter:
    return Chapter("sweep", "A sweep", ("Figure 5",), "Setting.", parts)


def test_a_chapter_and_the_index_link_to_files_that_are_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "docs" / "results"
    content = chapter(TABLE, PLOT)
    paths = write_chapter(content, folder)
    index = write_index([Entry("sweep", "A sweep", ("Figure 5",), "It works.")], folder)
    assert paths == [folder / "sweep.md", folder / "sweep-plot.png"]
    assert sorted(folder.iterdir()) == sorted([*paths, index])  # nothing temporary stays
    assert paths[0].read_text(encoding="utf-8") == markdown.chapter(content)
    assert paths[1].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    for page in (paths[0], index):
        links = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        assert links
        assert all((folder / link).is_file() for link in links)


def test_a_chapter_is_written_again_to_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first = [path.read_bytes() for path in write_chapter(chapter(TABLE, PLOT), tmp_path)]
    assert [path.read_bytes() for path in write_chapter(chapter(TABLE, PLOT), tmp_path)] == first


def test_a_chapter_of_tables_needs_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_chapter(chapter(TABLE), tmp_path) == [tmp_path / "sweep.md"]
    with pytest.raises(OptionError, match="matplotlib"):
        write_chapter(chapter(PLOT), tmp_path / "other")
    assert not (tmp_path / "other").exists()  # drawn before anything is written


def test_importing_the_package_does_not_import_matplotlib() -> None:
    code = "import sys, partialfusion_study.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_that_would_be_one_file_are_refused(tmp_path: Path) -> None:
    upper = Figure("PLOT", "Plot", PLOT.panels)
    with pytest.raises(OptionError, match="same file"):
        write_chapter(chapter(PLOT, upper), tmp_path)
    with pytest.raises(OptionError, match="same file"):
        write_index([Entry("a", "A", (), ""), Entry("A", "A", (), "")], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FusionError, match="file"):
        write_chapter(chapter(TABLE), tmp_path / "file")
