"""The page of results: its tables are written between two marks, the text around them by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .rows import Row, Store
from .tasks import TASKS

START, END = "<!-- tables: written by python -m benchmarks.peers -->", "<!-- end of the tables -->"
COLUMNS = ("method", "accuracy (%)", "size", "CPU seconds")


def write(store: Store, path: Path) -> None:
    """Replace the tables of the page."""
    before, found, rest = path.read_text(encoding="utf-8").partition(START)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise SystemExit(f"{path} has lost the marks between which its tables stand: {START} and {END}")
    lines = [START, "", *_lines(store), END]
    path.write_text(before + "\n".join(lines) + after, encoding="utf-8")


def _lines(store: Store) -> Iterator[str]:
    machines = sorted({row.machine for row in store.rows.values() if row.seconds})
    yield f"Times are from {' and '.join(machines)}, one thread."
    yield ""
    for task in TASKS:
        rows = [row for row in store.rows.values() if row.task == task.key]
        if not rows:
            continue
        yield f"### {task.title}"
        yield ""
        count, what = len(task.cases), "pairs of networks" if task.merges else "networks"
        yield f"Means ± standard deviations over {count} {what}."
        yield ""
        yield _line(COLUMNS)
        yield "| --- | ---: | ---: | ---: |"
        yield from (_line((_name(row), *row.cells())) for row in rows)
        yield ""


def _name(row: Row) -> str:
    return f"*{row.method}*" if row.group == "sources" else row.method


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
