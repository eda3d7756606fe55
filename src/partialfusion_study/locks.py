"""File locks between processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StudyError


@contextmanager
def held(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a file during the context; it is released when the process ends, however it ends.

    Args:
        path: the file, which is not removed afterwards.
        wait: whether to wait while another process holds the lock, instead of raising BlockingIOError.

    Raises:
        BlockingIOError: another process holds the lock.
        StudyError: the system or the disk does not support file locks.
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
