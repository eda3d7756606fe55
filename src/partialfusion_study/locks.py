"""File locks between processes, and files that are opened to be changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StudyError


@contextmanager
def held(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a file during the context; it is released when the process ends, however it ends.

    Args:
        path: the file, which is created where it is missing, never changed, and not removed afterwards.
        wait: whether to wait while another process holds the lock, instead of raising BlockingIOError.

    Raises:
        BlockingIOError: another process holds the lock.
        StudyError: the file cannot be opened or is no regular file, or the system or the disk has no file locks.
    """
    try:
        import fcntl
    except ImportError as error:
        raise StudyError("studies need file locks, which this system lacks: run them on Linux, macOS or WSL") from error
    if path.is_symlink():
        raise StudyError(f"{path} is a link, and a lock must be a file of its own: remove it")
    try:
        handle = opened(path, os.O_NOFOLLOW)
    except OSError as error:
        raise StudyError(
            f"{path} cannot be written: {error.strerror}; make the folder writable or choose another one"
        ) from error
    with os.fdopen(handle):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StudyError(f"{path} cannot be locked ({error.strerror}): choose a folder on a local disk") from error
        yield


def opened(path: Path, flags: int = 0) -> int:
    """A handle of a regular file for reading and writing, created where it is missing; what is in it stays.

    Raises:
        OSError: it cannot be opened.
        StudyError: it is a pipe, a device or a socket; nothing waits for those.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | flags, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StudyError(f"{path} is not a regular file: remove it or choose another folder")
    return handle
