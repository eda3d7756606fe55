"""Matching and writing on a Dask scheduler and its workers, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import partialfusion as pf
from streaming.tiny import inputs, saved
from transformer.needs import need

pytest.importorskip("distributed")


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a scheduler, and two workers."""
    file = tmp_path / "scheduler.json"
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
    with ExitStack() as stack:

        def start(module: str, *given: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{module}", "--scheduler-file", str(file), *given],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stderr=subprocess.DEVNULL,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        found = [start("dask_worker", *options) for _ in range(2)]
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        yield json.loads(file.read_text())["address"], found


def test_a_killed_worker_loses_nothing_and_the_bits_are_the_same(
    workers: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    need("transformers")
    from distributed import Client

    address, processes = workers
    directories = saved(tmp_path, "gpt2", shard="4KB")
    options: dict[str, Any] = {"alpha": 0.5, "check": False, "shard_size": 4000}
    pf.fuse_files(directories, tmp_path / "here", inputs("gpt2"), **options)
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
    killed: list[int] = []

    def kill(label: str, done: float) -> None:
        if label.startswith("writing shard 2") and not killed:
            killed.append(processes[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    pf.fuse_files(directories, tmp_path / "there", inputs("gpt2"), cluster=address, progress=kill, **options)
    assert killed
    here, there = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("here", "there"))
    assert here == there
