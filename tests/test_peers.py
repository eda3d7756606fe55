"""The comparison with other tools: its rows, its page, and how code from a clone is run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from benchmarks.peers import page
from benchmarks.peers.adapters.common import clone, recalibrated
from benchmarks.peers.rows import Row, Store
from benchmarks.peers.tasks import TASKS
from torch import nn

ROOT = Path(__file__).parents[1]
ROW = Row("resnet", "Some tool", "Some tool", (31.5,), (0.25,), (1.25,), "Some processor")


def test_rows_survive_in_the_file_and_the_last_counts(tmp_path: Path) -> None:
    store = Store(tmp_path / "rows.jsonl")
    later = Row("resnet", "Some tool", "Some tool", (32.5,), (0.25,), (2.0,))
    other = Row("vgg", "Some tool", "Some tool", (1.0, 2.0))
    for row in (ROW, other, later):
        store.add(row)
    assert Store(store.path).rows == store.rows == {ROW.key: later, other.key: other}
    store.tidy([other.key, later.key])
    assert list(Store(store.path).rows.values()) == list(store.rows.values()) == [other, later]
    assert len(store.path.read_text().splitlines()) == 2
    store.tidy([later.key])
    assert list(Store(store.path).rows.values()) == [later]


def test_a_method_is_complete_when_every_repetition_was_measured(tmp_path: Path) -> None:
    store = Store(tmp_path / "rows.jsonl")
    store.add(ROW)
    assert store.complete("resnet", "Some tool", 1)
    assert not store.complete("resnet", "Some tool", 3)
    assert not store.complete("vgg", "Some tool", 1)


def test_several_repetitions_are_shown_with_their_deviation() -> None:
    row = Row("resnet", "Some tool", "Some tool", (30.0, 32.0), (0.25, 0.26), (0.5, 3.5))
    assert row.cells() == ("31.00 ± 1.41", "0.26", "2.0")
    assert ROW.cells() == ("31.50", "0.25", "1.2")


def test_the_page_keeps_its_text_and_gets_the_tables(tmp_path: Path) -> None:
    store = Store(tmp_path / "rows.jsonl")
    store.add(ROW)
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.START}\nold\n{page.END}\nafter\n")
    page.write(store, path)
    page.write(store, path)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "Times are from Some processor, one thread." in text
    assert text.count("| Some tool | 31.50 | 0.25 | 1.2 |") == 1
    path.write_text("no marks")
    with pytest.raises(SystemExit, match="lost the marks"):
        page.write(store, path)


def test_every_committed_row_has_all_repetitions() -> None:
    store = Store(ROOT / "docs" / "results" / "peers.jsonl")
    counts = {task.key: len(task.cases) for task in TASKS}
    assert all(store.complete(row.task, row.method, counts[row.task]) for row in store.rows.values())


def test_the_committed_page_shows_the_committed_rows(tmp_path: Path) -> None:
    results = ROOT / "docs" / "results"
    store = Store(results / "peers.jsonl")
    text = (results / "peers.md").read_text(encoding="utf-8")
    assert {row.task for row in store.rows.values()} == {task.key for task in TASKS}
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    page.write(store, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == text


def test_code_of_a_clone_is_imported_and_forgotten(tmp_path: Path) -> None:
    (tmp_path / "helper_of_a_clone.py").write_text("from absent_package import Thing\nvalue = 3\n")
    with clone(tmp_path, unused=("absent_package",)):
        import helper_of_a_clone  # type: ignore[import-not-found]

        assert helper_of_a_clone.value == 3
        assert torch.ones(1).cuda().device.type in ("cpu", "cuda")
        with pytest.raises(ImportError, match="absent_package is not installed, but Thing is needed"):
            helper_of_a_clone.Thing()
    assert not {"helper_of_a_clone", "absent_package"} & set(sys.modules)
    assert str(tmp_path) not in sys.path
    with pytest.raises(SystemExit, match="is not a folder"), clone(tmp_path / "none"):
        pass


def test_batch_norms_are_measured_on_the_images() -> None:
    norm = nn.BatchNorm2d(3)
    batches = list(torch.randn(4, 50, 3, 2, 2) * 2 + 1)
    recalibrated(norm, batches)
    assert not norm.training
    means = torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0)
    assert torch.allclose(norm.running_mean, means, atol=1e-6)  # type: ignore[arg-type]
