"""A process killed while it saves leaves the old file or the new one, never anything in between."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import partialfusion as pf
from files import saver
from partialfusion.errors import CheckpointError
from partialfusion.io.storage import load, save


class Saver:
    """A process that starts children which save repeatedly, and kills them."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, saver.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.expect("ready")

    def expect(self, line: str | None = None) -> str:
        assert self.process.stdout is not None
        found = self.process.stdout.readline().strip()
        assert line is None or found == line
        return found

    def kill_one(self, mode: str, start: int, path: Path, moment: Callable[[int], None]) -> None:
        """Let a child save, and kill it when `moment` returns."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{mode} {start} {path}\n")
        self.process.stdin.flush()
        child = int(self.expect())
        try:
            moment(child)
        finally:
            os.kill(child, signal.SIGKILL)
            self.expect("ended")

    def close(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def process() -> Iterator[Saver]:
    found = Saver()
    yield found
    found.close()


def version(path: Path) -> int:
    """The version in a file; all of its numbers must be of the same."""
    values = torch.cat([p.detach().reshape(-1) for p in load(path, into=saver.net()).parameters()])
    assert bool((values == values[0]).all())
    return int(values[0])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing happened within a minute"
        time.sleep(0.0005)


def when_half_written(sizes: Callable[[], list[int]], full: int) -> Callable[[int], None]:
    """Wait until at most half of a file is there, and hold the process right there."""

    def in_part() -> bool:
        return any(0 < size < full // 2 for size in sizes())

    def held(child: int) -> bool:
        if not in_part():
            return False
        os.kill(child, signal.SIGSTOP)
        if in_part():
            return True
        os.kill(child, signal.SIGCONT)
        return False

    return lambda child: wait_for(lambda: held(child))


@pytest.fixture(scope="module")
def result() -> pf.Fusion:
    return saver.large_fusion()


def save_version(result: pf.Fusion, path: Path, number: int) -> int:
    """Save a version; the size of its file."""
    with torch.no_grad():
        for parameter in result.model.parameters():
            parameter.fill_(number)
    save(result, path)
    return path.stat().st_size


def temporaries(path: Path) -> dict[str, int]:
    """Name → size of the temporary files beside a path; those that take its place meanwhile are gone."""
    found = {}
    for p in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(FileNotFoundError):
            found[p.name] = p.stat().st_size
    return found


def test_a_killed_process_leaves_a_whole_file(process: Saver, result: pf.Fusion, tmp_path: Path) -> None:
    path, rng = tmp_path / "a.safetensors", random.Random(0)
    started = time.monotonic()
    full = save_version(result, path, 0)
    duration = time.monotonic() - started
    seen, cut = 0, 0
    for trial in range(12):
        known, inode = temporaries(path), path.stat().st_ino

        def fresh(known: dict[str, int] = known) -> list[int]:
            return [size for name, size in temporaries(path).items() if name not in known]

        def replaced(_: int, inode: int = inode) -> None:
            wait_for(lambda: path.stat().st_ino != inode)

        def at_random(_: int, wait: float = rng.uniform(0, 4 * duration)) -> None:
            time.sleep(wait)

        moment = (replaced, when_half_written(fresh, full), at_random)[trial % 3]
        process.kill_one("atomic", seen + 1, path, moment)
        found = version(path)
        assert found > seen if moment is replaced else found >= seen
        seen = found
        left = temporaries(path)
        assert len(left) <= 1, "the next writer removes what the one before left"
        cut += any(0 < size < full for size in left.values())
    assert cut >= 4, "the kills must have hit in the middle of writing"
    save_version(result, path, seen + 1)
    assert version(path) == seen + 1
    assert not temporaries(path)


def test_without_a_temporary_file_the_same_kill_destroys_it(process: Saver, result: pf.Fusion, tmp_path: Path) -> None:
    """So the test above can fail."""
    path = tmp_path / "a.safetensors"
    full = save_version(result, path, 0)
    process.kill_one("in-place", 1, path, when_half_written(lambda: [path.stat().st_size], full))
    with pytest.raises(CheckpointError, match="truncated"):
        version(path)
