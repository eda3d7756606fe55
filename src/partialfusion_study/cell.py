"""Cells: the independent runs of a study, each identified by its configuration alone."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
import traceback
from dataclasses import Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from partialfusion.core.machine import available_cores

from .errors import StudyError

STORED_AS = "stored_as"
ADDED = "added"


class Cell(Protocol):
    """A frozen dataclass of plain values, and what it computes.

    Plain values are str, int, float, bool, None, tuples, and frozen dataclasses of plain values. The fields determine
    the result: seeds are among them, and a version where the meaning of a cell may change. Class names are unique among
    the cells of a store, and worker processes can import the class.

    Results are found by a hash of class names and field names. A class or a field that has been renamed keeps the name
    its results are stored under: a class attribute `stored_as`, or `field(metadata={"stored_as": name})`. A field that
    was added when there were results already has `field(default=..., metadata={"added": True})`: its default is what
    those results were computed with, and is not stored.
    """

    def run(self) -> dict[str, Any]:
        """Compute the result, a dictionary of plain JSON values; equal fields give equal results."""


@dataclass(frozen=True)
class Record:
    """A result and its provenance.

    Attributes:
        kind: the class name of the cell.
        key: the hash of the cell, see `key`.
        config: the fields of the cell.
        result: what the cell returned.
        seconds: wall-clock time of the run.
        machine: processor, number of cores, system and version of torch.
        when: date and time (UTC) at which the run ended.
    """

    kind: str
    key: str
    config: dict[str, Any]
    result: dict[str, Any]
    seconds: float
    machine: dict[str, Any]
    when: str


def kind(cell: object) -> str:
    """The class name under which a cell is stored."""
    name: str = vars(type(cell)).get(STORED_AS, type(cell).__name__)  # not inherited: a subclass is another kind
    return name


def config(cell: object) -> dict[str, Any]:
    """The fields of a cell as JSON values.

    A nested dataclass has its class name as "class", which cannot be the name of a field.
    """
    if not is_dataclass(cell) or isinstance(cell, type):
        raise StudyError(f"{cell!r} is not a cell: a cell is an instance of a frozen dataclass with a method run")
    values = {f: getattr(cell, f.name) for f in fields(cell)}
    return {
        _name(f): plain(value, f"{kind(cell)}.{f.name}")
        for f, value in values.items()
        if not (f.metadata.get(ADDED) and value == f.default)
    }


def _name(field: Field[Any]) -> str:
    name: str = field.metadata.get(STORED_AS, field.name)
    return name


def key(cell: object) -> str:
    """32 hexadecimal digits that depend only on the class name and the fields, not on their order or the process."""
    return hashlib.sha256(text({"kind": kind(cell), "config": config(cell)}).encode()).hexdigest()[:32]


def describe(cell: Cell) -> str:
    """The cell in one line, for messages."""
    return f"{kind(cell)} {text(config(cell))}"


def text(value: Any) -> str:
    """JSON on one line, the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def plain(value: Any, where: str) -> Any:
    """A value as JSON returns it: tuples become lists, dataclasses become objects; errors name it by `where`."""
    if isinstance(value, float) and not math.isfinite(value):
        raise StudyError(f"{where} is {value}: only finite numbers can be stored, use None for a missing value")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: plain(v, f"{where}.{name}") for name, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": kind(value)} | config(value)
    raise StudyError(
        f"{where} is of type {type(value).__name__}: use str, int, float, bool, None, lists, tuples and "
        "dictionaries with str keys (for a tensor or an array: .item() or .tolist())"
    )


def compute(cell: Cell) -> Record:
    """Run a cell; called in the workers.

    Raises:
        StudyError: whatever the cell raised, as text, because not every exception can be sent to another process.
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


@cache
def machine() -> dict[str, Any]:
    """A short description of the machine that results are computed on."""
    found: dict[str, Any] = {"cpu": _processor(), "cores": available_cores()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found | {"system": f"{platform.system()} {platform.machine()}", "torch": str(torch.__version__)}


def _processor() -> str:
    """The name of the processor, where the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
