"""The folder in which a result grows: what is finished in it survives a kill, and the next run goes on from there."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from ..io.files import reading
from ..io.header import from_file
from ..io.pretrained import WEIGHTS, exchange, keep_others, put_back, write_json
from ..io.shards import shard_digest
from ..io.temporary import locked
from ..kernels import Plan
from .write import note

log = logging.getLogger(__name__)

JOB = "job.json"


@dataclass(frozen=True)
class Unfinished:
    """A folder beside the target, with the plan and the shards that are finished.

    Attributes:
        folder: the folder, named like the target with ".unfinished" behind.
        target: the directory that the result will have.
    """

    folder: Path
    target: Path

    @property
    def header(self) -> Path:
        return self.folder / WEIGHTS

    def begin(self, job: str) -> None:
        """Keep what an earlier run of the same job finished, and nothing of any other job.

        Args:
            job: the hash of all that the result depends on.
        """
        known = self.folder / JOB
        try:
            same = json.loads(known.read_text()) == {"sha256": job}
        except (OSError, ValueError):
            same = False
        if not same:
            held = list(self.folder.iterdir())
            if held and not known.is_file():
                raise CheckpointError(f"{self.folder} holds something else, and the result grows there: move it away")
            if held:
                log.warning("%s was begun with other models or options: starting anew", self.folder)
            for item in held:
                shutil.rmtree(item) if item.is_dir() else item.unlink()
            write_json(known, {"sha256": job})

    def plan(self, size: int) -> Plan | None:
        """The plan that an earlier run found; None where there is none yet.

        Args:
            size: the bytes of the files that it is made for.
        """
        if not self.header.is_file():
            return None
        try:
            with reading(self.header) as file:
                return from_file(file, self.header, size).plan
        except CheckpointError as error:
            log.warning("%s; matching again", str(error).removesuffix("; save or copy it again"))
            return None

    def finished(self, name: str) -> str | None:
        """The hash of a shard that an earlier run finished, once it is known to hold what was written; else None."""
        path = self.folder / name
        if not (path.is_file() and note(path).is_file()):
            return None
        try:
            if (expected := note(path).read_text().strip()) == shard_digest(path):
                return expected
        except CheckpointError as error:
            log.info("%s", error)
        log.warning("%s is not what was written: writing it again", path)
        return None

    def complete(self, keep: set[str]) -> None:
        """Let the folder take the place of the target; only the files named go along, and what was there beside an
        earlier result."""
        for item in self.folder.iterdir():
            if item.name not in keep:
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        keep_others(self.target, self.folder)
        exchange(self.folder, self.target)

    def abandon(self) -> None:
        """Remove the folder if there is nothing in it to go on from."""
        with suppress(OSError):
            if not self.header.is_file():
                (self.folder / JOB).unlink(missing_ok=True)
                self.folder.rmdir()


@contextmanager
def unfinished(target: Path) -> Iterator[Unfinished]:
    """The folder of a target, held by this process alone; it stays where the work fails, and is the target if not."""
    found = Unfinished(target.with_name(f"{target.name}.unfinished"), target)
    folder = found.folder
    try:
        put_back(target)
        folder.mkdir(exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            if locked(handle) is False:
                raise CheckpointError(f"{target} is being written by another process: wait for it, or end it")
            try:
                yield found
            finally:
                found.abandon()
        finally:
            os.close(handle)
    except OSError as error:
        raise CheckpointError(
            f"{target} cannot be written: {error.strerror or error}; free some space or choose another folder. What is "
            f"finished stays in {folder}, and the same call goes on from there"
        ) from error


def check_space(folder: Path, needed: int) -> None:
    """There must be room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{folder} has {free / 1e9:.2f} GB free and {needed / 1e9:.2f} GB are to be written: free some space or "
            "choose another folder"
        )
