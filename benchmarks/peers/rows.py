"""Results: one line of JSON for each method on each task, written as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev


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
        machine: processor and version of torch.
    """

    task: str
    method: str
    group: str
    accuracy: tuple[float, ...]
    ratio: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    machine: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.method

    def cells(self) -> tuple[str, str, str]:
        """Accuracy, size and CPU time as the table shows them."""
        spread = f" ± {stdev(self.accuracy):.2f}" if len(self.accuracy) > 1 else ""
        size = f"{fmean(self.ratio):.2f}" if self.ratio else ""
        seconds = fmean(self.seconds) if self.seconds else None
        shown = "" if seconds is None else f"{seconds:.{1 if seconds >= 1 else 2}f}"
        return f"{fmean(self.accuracy):.2f}{spread}", size, shown


class Store:
    """The rows in a file; the last line of a task and a method counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [Row(**{k: _frozen(v) for k, v in json.loads(line).items()}) for line in lines]
        self.rows = {row.key: row for row in found}

    def complete(self, task: str, method: str, repetitions: int) -> bool:
        """Whether a method was measured on every repetition of a task."""
        row = self.rows.get((task, method))
        return row is not None and len(row.accuracy) == repetitions

    def add(self, row: Row) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row) + "\n")
        self.rows[row.key] = row

    def tidy(self, order: Iterable[tuple[str, str]]) -> None:
        """Keep these rows, in this order."""
        self.rows = {key: self.rows[key] for key in order}
        self.path.write_text("".join(_line(row) + "\n" for row in self.rows.values()), encoding="utf-8")


def _line(row: Row) -> str:
    return json.dumps(asdict(row), ensure_ascii=False)


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
