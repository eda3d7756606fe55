"""Cells for the tests of the runner, importable by worker processes; each leaves a trace of every call."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Square:
    """The square of a number.

    Attributes:
        number: what is squared.
        folder: where every call leaves a file: its name says which number, its content which process.
        seconds: how long it takes.
        deaths: how many times the process that runs it kills itself.
        waits: until there is a file "go" in the folder.
    """

    number: int
    folder: str
    seconds: float = 0.0
    deaths: int = 0
    waits: bool = False

    def run(self) -> dict[str, Any]:
        calls = len(list(Path(self.folder).glob(f"{self.number}-*")))
        (Path(self.folder) / f"{self.number}-{calls}").write_text(str(os.getpid()))
        if calls < self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        while self.waits and not (Path(self.folder) / "go").exists():
            time.sleep(0.01)
        return {"square": self.number**2, "threads": torch.get_num_threads()}


@dataclass(frozen=True)
class Broken:
    """Raises an exception that cannot be pickled, or returns something that cannot be stored."""

    how: str

    def run(self) -> dict[str, Any]:
        class LocalError(Exception):
            pass

        if self.how == "raises":
            raise LocalError("out of luck")
        return {"nan": {"loss": [1.0, float("nan")]}, "object": {"loss": object()}}[self.how]


def squares(count: int, folder: Path, **options: Any) -> list[Square]:
    return [Square(number, str(folder), **options) for number in range(count)]


def some_wait(folder: Path) -> list[Square]:
    """Ten cells, of which the second half waits."""
    return [replace(cell, waits=cell.number >= 5) for cell in squares(10, folder)]


def calls(folder: Path) -> dict[int, int]:
    """Number → how often its square was computed."""
    found: dict[int, int] = {}
    for path in folder.glob("*-*"):
        number = int(path.name.partition("-")[0])
        found[number] = found.get(number, 0) + 1
    return found


def processes(folder: Path) -> set[int]:
    """The processes that began a call."""
    return {int(text) for path in folder.glob("*-*") if (text := path.read_text())}


def lines(folder: Path) -> list[dict[str, Any]]:
    """The squares in a store, read without it."""
    return [json.loads(line) for line in (folder / "Square.jsonl").read_text().splitlines()]


def stored(folder: Path) -> list[int]:
    """The numbers whose squares are in a store, in order, as often as they are there."""
    found = lines(folder)
    assert all(line["result"]["square"] == line["config"]["number"] ** 2 for line in found)
    return sorted(line["config"]["number"] for line in found)


def alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} seconds in vain"
        time.sleep(0.01)
