"""Locks between processes, by files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StudyError


@contextmanager
def held(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a file while the context lasts; it goes with the process, whatever ends it.

    Args:
        path: of the file, which stays.
        wait: for others that hold it, or raise BlockingIOError.

    Raises:
        BlockingIOError: somebody else holds it.
        StudyError: this system or this disk has no such locks.
    """
    try:
        import fcntl
    except ImportError as error:
        raise StudyError("studies need file locks, which this system lacks: run them on Linux, macOS or WSL") from error
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StudyError(f"{path} cannot be locked ({error.strerror}): choose a folder on a local disk") from error
        yield
