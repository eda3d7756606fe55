"""The results of a study: one text file per kind of cell, one line per result."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from partialfusion.errors import CheckpointError
from partialfusion.io.files import existing, replacing

from .cell import Cell, Record, describe, key, kind, plain, text
from .errors import StudyError
from .locks import held, opened

log = logging.getLogger(__name__)

LOCK = ".lock"


class Store:
    """A folder with a file <kind>.jsonl for each kind of cell.

    A line is a record as JSON, with a digest of all that it says. Lines are only appended, each in one write that
    reaches the disk before the next: a process that is killed leaves at most an incomplete last line. Lines that are
    incomplete or do not fit their digest are named in a warning and do not count; before the next line is written, they
    are moved to <kind>.damaged. Of two lines with the same key, the first counts.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._kinds: dict[str, _Lines] = {}
        self._locked = False

    def __contains__(self, cell: Cell) -> bool:
        return key(cell) in self._lines(kind(cell)).records

    def __getitem__(self, cell: Cell) -> dict[str, Any]:
        """The result of a cell."""
        return self.record(cell).result

    def record(self, cell: Cell) -> Record:
        """The result of a cell with its provenance."""
        try:
            return self._lines(kind(cell)).records[key(cell)]
        except KeyError:
            raise StudyError(f"no result of {describe(cell)} in {self.folder}: run the study first") from None

    def put(self, record: Record) -> None:
        """Append a result, unless there is one already."""
        with self.writing():
            self._lines(record.kind).append(record)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Exclude other writers during the context; results that others wrote before are read first.

        Raises:
            StudyError: another process is writing.
        """
        if self._locked:
            yield
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyError(
                f"the folder {self.folder} cannot be created: {error.strerror}; choose another one"
            ) from error
        with self._alone():
            self._kinds.clear()
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(held(self.folder / LOCK, wait=False))
            except BlockingIOError:
                raise StudyError(
                    f"another run is writing to {self.folder}: wait for it or choose another folder"
                ) from None
            yield

    def _lines(self, name: str) -> _Lines:
        """The records of a kind, read on first use."""
        if name not in self._kinds:
            self._kinds[name] = _Lines(self.folder / f"{name}.jsonl")
        return self._kinds[name]


def signed(record: Record) -> bytes:
    """The line of a record: its fields but for the kind, which the file has, and a digest of all of them."""
    values = plain(asdict(record), record.kind)
    stored = {name: value for name, value in values.items() if name != "kind"} | {"digest": _digest(values)}
    return text(stored).encode() + b"\n"


def _digest(values: dict[str, Any]) -> str:
    """32 hexadecimal digits of the fields of a record, kind included."""
    return hashlib.sha256(text(values).encode()).hexdigest()[:32]


class _Lines:
    """The records in one file.

    Attributes:
        path: the file, which need not exist.
        records: key → record.
        whole: the lines that fit their digests.
        damaged: the others.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        self.whole: list[bytes] = []
        self.damaged: list[bytes] = []
        try:
            data = existing(path, empty=True).read_bytes() if os.path.exists(path) else b""
        except CheckpointError as error:
            raise StudyError(str(error)) from error
        for number, line in enumerate(data.splitlines(keepends=True), start=1):
            try:
                record = self._record(line)
            except (ValueError, TypeError, RecursionError) as error:
                log.warning("%s, line %d does not count: %s; it is kept in %s", path, number, error, self.aside.name)
                self.damaged.append(line)
            else:
                self.records.setdefault(record.key, record)
                self.whole.append(line)

    @property
    def aside(self) -> Path:
        """Where damaged lines go."""
        return self.path.with_suffix(".damaged")

    def _record(self, line: bytes) -> Record:
        """The record of a line; raises ValueError or TypeError where it is not a complete record."""
        if not line.endswith(b"\n"):
            raise ValueError("it is incomplete, as a run leaves it that is killed")
        values = json.loads(line)
        digest = values.pop("digest", None) if isinstance(values, dict) else None
        record = Record(kind=self.path.stem, **values)
        if not isinstance(record.key, str):
            raise ValueError(f"its key is {record.key!r}")
        if digest != _digest(asdict(record)):
            raise ValueError("it has no digest" if digest is None else "it does not fit its digest")
        return record

    def append(self, record: Record) -> None:
        """Write a record after the lines that count; damaged ones are moved away first."""
        if record.key in self.records:
            return
        line = signed(record)
        try:
            if self.damaged:
                self._put_aside()
            _append(self.path, line)
        except OSError as error:
            raise StudyError(
                f"{error.filename or self.path} cannot be written: {error.strerror}; free some space. The results "
                "before are kept"
            ) from error
        self.whole.append(line)
        self.records[record.key] = record

    def _put_aside(self) -> None:
        """Move the damaged lines; until the last step, the file is as it was."""
        _append(self.aside, b"".join(line.rstrip(b"\r\n") + b"\n" for line in self.damaged))
        with replacing(self.path) as file:
            file.write(b"".join(self.whole))
        self.damaged = []


def _append(path: Path, data: bytes) -> None:
    """Append to a file in one write that reaches the disk; what does not fit on it is taken back."""
    file = opened(path, os.O_APPEND)
    try:
        size = os.fstat(file).st_size
        if os.write(file, data) < len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    finally:
        os.close(file)
