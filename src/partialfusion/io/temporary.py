"""Temporary names beside a file or folder to write; those whose writer was killed are removed by the next one."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def claimed(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """A new file or folder beside a target, under a temporary name; gone at the end, unless it was renamed.

    The system holds a lock on it until this process ends, however it ends. What lies there unlocked is of a writer
    that was killed, and is removed first.

    Args:
        target: what the file or folder will replace.
        folder: whether it is a folder.
    """
    _sweep(target)
    path, handle = _claim(target, folder)
    try:
        yield path
    finally:
        remove(path)
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there and can be removed."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _claim(target: Path, folder: bool) -> tuple[Path, int]:
    """A new path and an open handle that holds its lock. A sweeping process may be faster: then another name."""
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        if folder:
            path.mkdir()
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if locked(handle) is not False and path.exists():
            return path, handle
        os.close(handle)


def _sweep(target: Path) -> None:
    """Remove the temporary files and folders of a target that no process holds."""
    left = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{8}\.tmp")
    with suppress(OSError):
        for name in os.listdir(target.parent):
            if left.fullmatch(name):
                _remove_unclaimed(target.with_name(name))


def _remove_unclaimed(path: Path) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if locked(handle):
                remove(path)
        finally:
            os.close(handle)


def locked(handle: int) -> bool | None:
    """Whether the lock was free and is now held through this handle; None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # a system or a file system without locks: nobody can tell whether a writer lives
        return None
    return True
