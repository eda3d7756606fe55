"""The folder in which a result grows: what is finished in it survives a kill, and the next run goes on from there."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..blueprint import Blueprint
from ..errors import CheckpointError, MismatchError
from ..io.files import reading
from ..io.header import Source, from_file
from ..io.hf import read_json, write_json
from ..io.pretrained import WEIGHTS, exchange, keep_others, put_back
from ..io.shards import shard_digest
from ..io.stored import check_spaces
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
        held = list(self.folder.iterdir())
        if held and not os.path.lexists(known):
            raise CheckpointError(f"{self.folder} holds something else, and the result grows there: move it away")
        try:
            same = _is_ours(known) and read_json(known) == {"sha256": job}
        except CheckpointError:
            same = False
        if held and not same:
            log.warning("%s was begun with other models or options: starting anew", self.folder)
        for item in held:
            if not same or not _is_ours(item):
                _remove(item)
        if not same:
            write_json(known, {"sha256": job})

    def plan(self, size: int, sources: Sequence[Source], blueprints: Sequence[Blueprint]) -> Plan | None:
        """The plan that an earlier run found; None where there is none yet.

        Args:
            size: the bytes of the files that it is made for.
            sources: class and hash of the models that it is made for.
            blueprints: theirs.
        """
        if not self.header.is_file():
            return None
        try:
            with reading(self.header) as file:
                stored = from_file(file, self.header, size)
            check_spaces(stored.plan, blueprints, self.header)
            if stored.sources == tuple(sources):
                return stored.plan
            why = f"{self.header} is that of other models"
        except (CheckpointError, MismatchError) as error:
            why = str(error).removesuffix("; save or copy it again")
        log.warning("%s; matching again", why)
        return None

    def finished(self, name: str) -> str | None:
        """The hash of a shard that an earlier run finished, once it is known to hold what was written; else None."""
        path = self.folder / name
        if not (path.is_file() and note(path).is_file()):
            return None
        try:
            if note(path).read_bytes() == (found := shard_digest(path)).encode():
                return found
        except CheckpointError as error:
            log.info("%s", error)
        log.warning("%s is not what was written: writing it again", path)
        return None

    def complete(self, keep: set[str]) -> None:
        """Let the folder take the place of the target; only the files named go along, and what was there beside an
        earlier result."""
        for item in self.folder.iterdir():
            if item.name not in keep:
                _remove(item)
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
    if folder.is_symlink():
        raise CheckpointError(f"{folder} is a link, and the result grows there: move it away")
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


def _is_ours(item: Path) -> bool:
    """Whether it can be a file that this library wrote; through a link, something else would be changed."""
    return item.is_file() and not item.is_symlink()


def _remove(item: Path) -> None:
    shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()


def check_space(folder: Path, needed: int) -> None:
    """There must be room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{folder} has {free / 1e9:.2f} GB free and {needed / 1e9:.2f} GB are to be written: free some space or "
            "choose another folder"
        )
