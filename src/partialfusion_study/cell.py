"""Cells: the independent pieces of a study, each known by its configuration alone."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
import traceback
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from .errors import StudyError


class Cell(Protocol):
    """A frozen dataclass of plain values, and what it computes.

    Plain are str, int, float, bool, None, tuples, and frozen dataclasses of plain values. The fields
    decide the result: seeds are among them, and a version where the meaning of a cell may change. Class names are
    unique among the cells of a store, and the processes that run a cell can import its class.
    """

    def run(self) -> dict[str, Any]:
        """Compute the result, of plain JSON values; the same fields, the same result."""


@dataclass(frozen=True)
class Record:
    """A result, and how it came about.

    Attributes:
        kind: class name of the cell.
        key: of the cell, see `key`.
        config: its fields.
        result: what it returned.
        seconds: wall clock.
        machine: processor, cores, system and version of torch.
        when: date and time (UTC) of the end.
    """

    kind: str
    key: str
    config: dict[str, Any]
    result: dict[str, Any]
    seconds: float
    machine: dict[str, Any]
    when: str


def kind(cell: object) -> str:
    """Class name of a cell."""
    return type(cell).__name__


def config(cell: object) -> dict[str, Any]:
    """The fields of a cell as JSON values.

    A dataclass inside carries its own class name as "class", which no field can be called.
    """
    if not is_dataclass(cell) or isinstance(cell, type):
        raise StudyError(f"{cell!r} is no cell: a cell is an instance of a frozen dataclass with a method run")
    return {f.name: plain(getattr(cell, f.name), f"{kind(cell)}.{f.name}") for f in fields(cell)}


def key(cell: object) -> str:
    """32 hexadecimal digits that depend on the class name and the fields alone, not on their order or the process."""
    return hashlib.sha256(text({"kind": kind(cell), "config": config(cell)}).encode()).hexdigest()[:32]


def describe(cell: Cell) -> str:
    """A cell as messages name it."""
    return f"{kind(cell)} {text(config(cell))}"


def text(value: Any) -> str:
    """JSON on one line, the same for the same value."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def plain(value: Any, where: str) -> Any:
    """A value as JSON gives it back: tuples become lists, dataclasses objects; `where` names it in errors."""
    if isinstance(value, float) and not math.isfinite(value):
        raise StudyError(f"{where} is {value}: only finite numbers can be stored, use None for what does not exist")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: plain(v, f"{where}.{name}") for name, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__} | config(value)
    raise StudyError(
        f"{where} is of type {type(value).__name__}: use str, int, float, bool, None, lists, tuples and "
        "dictionaries with str as keys (a tensor or array: .item() or .tolist())"
    )


def compute(cell: Cell) -> Record:
    """Run a cell; called in the workers.

    Raises:
        StudyError: whatever the cell raised, as text: not every exception can be sent to another process.
    """
    started = time.perf_counter()
    try:
        result = cell.run()
        if not isinstance(result, dict):
            raise StudyError(f"{kind(cell)}.run() must return a dictionary, found {type(result).__name__}")
        result = plain(result, "result")
    except Exception as error:
        raise StudyError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from None
    seconds = round(time.perf_counter() - started, 3)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Record(kind(cell), key(cell), config(cell), result, seconds, machine(), when)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def machine() -> dict[str, Any]:
    """What a result was computed on, in short."""
    found: dict[str, Any] = {"cpu": _processor(), "cores": cores()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found | {"system": f"{platform.system()} {platform.machine()}", "torch": str(torch.__version__)}


def _processor() -> str:
    """Name of the processor where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
