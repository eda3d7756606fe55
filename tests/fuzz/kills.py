"""Processes that are killed while they save, fuse or run a study: what was there stays, and the next one goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import partialfusion as pf
from partialfusion.io import digest
from partialfusion.io.storage import load, save
from partialfusion.streaming.fuse import fuse_files
from partialfusion_study.executors import Inline
from partialfusion_study.runner import run
from partialfusion_study.store import Store
from streaming import tiny
from study.sample_cells import Square, stored

PATIENCE = 20.0  # seconds for a process to begin


@dataclass
class Kills:
    """What came of killing processes.

    Attributes:
        what: what they did.
        killed: how many were killed while they worked.
        cut: how many of these left something unfinished behind.
        findings: what went wrong, in words.
    """

    what: str
    killed: int
    cut: int
    findings: list[str]

    def __str__(self) -> str:
        return f"{self.what}: {self.killed} kills, {self.cut} in the middle of a file, {len(self.findings)} findings"


def killed(work: Callable[[], None], begun: Callable[[], bool], seconds: float) -> bool:
    """Whether a process that does some work was still at it when it was killed, some time after it had begun."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    deadline = time.monotonic() + PATIENCE
    while not begun() and time.monotonic() < deadline:
        time.sleep(0.0002)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def net(width: int = 400) -> nn.Module:
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5))


def kill_saves(folder: Path, count: int, seed: int = 0) -> Kills:
    """Kill processes that save version after version over one file; all numbers of version v are v."""
    folder.mkdir(parents=True)
    digest.CHUNK = 1 << 14  # many small writes: kills hit between two of them
    path, rng, found = folder / "a.safetensors", random.Random(seed), Kills("pf.save", 0, 0, [])
    result = pf.fuse([net().eval(), net().eval()], torch.zeros(1, 10), method="average", check=False)

    def save_version(version: int) -> None:
        with torch.no_grad():
            for parameter in result.model.parameters():
                parameter.fill_(version)
        save(result, path)

    def save_from(version: int) -> None:
        while True:
            save_version(version)
            version += 1

    save_version(0)
    seen = 0
    while found.killed < count:
        known = set(os.listdir(folder))

        def begun(known: set[str] = known) -> bool:
            return not set(os.listdir(folder)) <= known

        found.killed += killed(lambda start=seen + 1: save_from(start), begun, rng.choice((0.0, rng.uniform(0, 0.05))))
        left = [p for p in folder.iterdir() if p != path]
        found.cut += bool(left)
        if len(left) > 1:
            found.findings.append(f"{len(left)} temporary files: {left}")
        try:
            values = {float(v) for p in load(path, into=net()).state_dict().values() for v in p.aminmax()}
        except Exception as error:
            found.findings.append(f"{type(error).__name__}: {error}")
            save_version(seen)
            continue
        if len(values) > 1 or min(values) < seen:
            found.findings.append(f"versions {values} after {seen}")
        seen = int(min(values))
    save_version(seen + 1)
    if os.listdir(folder) != [path.name]:
        found.findings.append(f"left behind: {os.listdir(folder)}")
    return found


def kill_study(folder: Path, count: int, seed: int = 0) -> Kills:
    """Kill processes that run the same study; no result is lost or computed into two lines."""
    (folder / "trace").mkdir(parents=True)
    rng, found, results = random.Random(seed), Kills("study", 0, 0, []), folder / "results"
    cells = [Square(number, str(folder / "trace"), seconds=0.001) for number in range(40 * count)]
    before: list[int] = []
    file = results / "Square.jsonl"
    while found.killed < count:
        size = _size(file)
        found.killed += killed(
            lambda: _run(cells, results), lambda size=size: _size(file) != size, rng.uniform(0.0, 0.05)
        )
        found.cut += file.exists() and not file.read_bytes().endswith(b"\n")
        try:
            store = Store(results)
            now = [cell.number for cell in cells if cell in store]
            wrong = [c.number for c in cells if c in store and store[c]["square"] != c.number**2]
        except Exception as error:
            found.findings.append(f"{type(error).__name__}: {error}")
            break
        if wrong or not set(before) <= set(now):
            found.findings.append(f"wrong {wrong}, lost {sorted(set(before) - set(now))}")
        before = now
    _run(cells, results)
    if stored(results) != list(range(len(cells))):
        found.findings.append("not every cell has one line")
    return found


def kill_streams(folder: Path, count: int, seed: int = 0) -> Kills:
    """Kill processes that fuse the same directories; those that go on end with the bytes of one that was not killed."""
    folder.mkdir(parents=True)
    rng, found, out = random.Random(seed), Kills("pf.fuse_files", 0, 0, []), folder / "out"
    sources = tiny.saved(folder, "llama")

    def fused(target: Path) -> None:
        fuse_files(sources, target, alpha=0.5, shard_size=2000, check=False, progress=False)

    fused(folder / "expected")
    expected = _contents(folder / "expected")
    unfinished = folder / "out.unfinished"
    while found.killed < count:
        before, rounds = _names(unfinished), found.killed
        hit = killed(lambda: fused(out), lambda known=before: _names(unfinished) != known, rng.uniform(0.0, 0.05))
        found.killed += hit
        found.cut += hit and unfinished.exists()
        if out.exists() and _contents(out) != expected:
            found.findings.append(f"after kill {rounds} {out} is not what was to be written")
        if out.exists() or rng.random() < 0.1:
            try:
                fused(out)
            except Exception as error:
                found.findings.append(f"{type(error).__name__}: {error}")
                break
            if _contents(out) != expected:
                found.findings.append(f"after kill {rounds} the same call gives other bytes")
            shutil.rmtree(out)
    fused(out)
    left = sorted(p.name for p in folder.iterdir() if p.name.startswith((".", "out")))
    if _contents(out) != expected or left != ["out"]:
        found.findings.append(f"the last call gives other bytes, or leaves {left}")
    return found


def _names(folder: Path) -> set[str]:
    """What is in a folder; nothing where there is none."""
    return set(os.listdir(folder)) if folder.exists() else set()


def _contents(folder: Path) -> dict[str, bytes]:
    """Name → content of every file."""
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _run(cells: list[Square], results: Path) -> None:
    run(cells, Store(results), Inline(), progress=False)
