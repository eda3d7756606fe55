"""The results of a study: one text file per kind of cell, one line per result."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cell import Cell, Record, describe, key, kind, plain, text
from .errors import StudyError
from .locks import held

log = logging.getLogger(__name__)

LOCK = ".lock"


class Store:
    """A folder with a file <kind>.jsonl for each kind of cell.

    A line is a record as JSON. Lines are only appended, each in one write that reaches the disk before the next:
    a process that is killed leaves at most an incomplete last line, which is dropped. Of two lines with the same key,
    the first counts.
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
            except OSError as error:
                raise StudyError(
                    f"the folder {self.folder} is not writable: {error.strerror}; choose another one"
                ) from error
            yield

    def _lines(self, name: str) -> _Lines:
        """The records of a kind, read on first use."""
        if name not in self._kinds:
            self._kinds[name] = _Lines(self.folder / f"{name}.jsonl")
        return self._kinds[name]


class _Lines:
    """The records in one file.

    Attributes:
        path: the file, which need not exist.
        records: key → record.
        size: the number of bytes of complete lines; anything after them is incomplete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        try:
            data = path.read_bytes() if os.path.exists(path) else b""
        except OSError as error:
            raise StudyError(f"{path} cannot be read: {error.strerror}; choose another folder") from error
        lines = data.splitlines(keepends=True)
        self.size = 0
        for number, line in enumerate(lines, start=1):
            try:
                self._add(line)
            except ValueError as error:
                if number < len(lines):
                    raise StudyError(
                        f"{path}, line {number} is not a result ({error}): repair or delete the line"
                    ) from None
                log.warning("%s: dropped the last line, which is incomplete because a run was killed", path)
            else:
                self.size += len(line)

    def _add(self, line: bytes) -> None:
        """Add the record of a line; raises ValueError where it is not a complete record."""
        if not line.endswith(b"\n"):
            raise ValueError("it is incomplete")
        try:
            record = Record(kind=self.path.stem, **json.loads(line))
        except (TypeError, RecursionError) as error:
            raise ValueError(error) from None
        if not isinstance(record.key, str):
            raise ValueError(f"its key is {record.key!r}")
        self.records.setdefault(record.key, record)

    def append(self, record: Record) -> None:
        """Write a record after the complete lines."""
        if record.key in self.records:
            return
        values = plain(asdict(record), record.kind)
        del values["kind"]
        line = text(values).encode() + b"\n"
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.ftruncate(file, self.size)
                if os.write(file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise StudyError(
                f"{self.path} cannot be written: {error.strerror}; free some space. The results before are kept"
            ) from error
        self.size += len(line)
        self.records[record.key] = record
