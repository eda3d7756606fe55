"""Results: one line of JSON for each method on each task, written as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean


@dataclass(frozen=True)
class Row:
    """What one method reached on one task.

    Attributes:
        task: the key of the task.
        method: what the table calls it.
        group: "sources", "ours", or the name of a peer.
        accuracy: in percent, one number for each repetition.
        ratio: all parameters relative to one network, likewise; empty for the networks themselves.
        seconds: CPU time of the whole call, likewise.
    """

    task: str
    method: str
    group: str
    accuracy: tuple[float, ...]
    ratio: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.method

    def cells(self) -> tuple[str, str, str]:
        """Accuracy, size and CPU time as the table shows them."""
        digits = 2 if len(self.accuracy) > 1 else 1
        size = f"{fmean(self.ratio):.2f}" if self.ratio else ""
        seconds = f"{fmean(self.seconds):.1f}" if self.seconds else ""
        return f"{fmean(self.accuracy):.{digits}f}", size, seconds


class Store:
    """The rows in a file; the last line of a task and a method counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [Row(**{k: _frozen(v) for k, v in json.loads(line).items()}) for line in lines]
        self.rows = {row.key: row for row in found}

    def add(self, row: Row) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row) + "\n")
        self.rows[row.key] = row

    def tidy(self, order: Iterable[tuple[str, str]]) -> None:
        """Rewrite the file in a given order, without lines that no longer count."""
        places = {key: k for k, key in enumerate(order)}
        kept = sorted(self.rows.values(), key=lambda row: places.get(row.key, len(places)))
        self.path.write_text("".join(_line(row) + "\n" for row in kept), encoding="utf-8")


def _line(row: Row) -> str:
    return json.dumps(asdict(row), ensure_ascii=False)


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
