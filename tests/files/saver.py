"""Saves over one file again and again, in a process that is meant to be killed: see test_kill.py."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

import partialfusion as pf
from partialfusion.io import digest, storage

WIDTH = 2000


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(10, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5))


def large_fusion() -> pf.Fusion:
    """About 16 MB."""
    return pf.fuse([net(), net()], torch.zeros(1, 10), method="average", check=False)


@contextmanager
def in_place(path: Path) -> Iterator[BinaryIO]:
    """Saving without a temporary file."""
    with open(path, "wb") as file:
        yield file


def save_repeatedly(result: pf.Fusion, path: Path, start: int) -> None:
    """Save version after version, until no test can be waiting any more; all numbers of version v are v."""
    end = time.monotonic() + 120
    for version in takewhile(lambda _: time.monotonic() < end, count(start)):
        with torch.no_grad():
            for parameter in result.model.parameters():
                parameter.fill_(version)
        storage.save(result, path)


def main() -> None:
    """For every line "atomic 5 path" or "in-place 5 path": a child that saves from version 5 on.

    Prints the child's id, and "ended" when it is gone.
    """
    torch.set_num_threads(1)
    digest.CHUNK = 1 << 20  # many small writes: a process is held between two of them
    result = large_fusion()
    print("ready", flush=True)
    for line in sys.stdin:
        mode, start, path = line.rstrip("\n").split(" ", 2)
        child = os.fork()
        if child == 0:
            if mode == "in-place":
                storage.replacing = in_place  # type: ignore[assignment]
            save_repeatedly(result, Path(path), int(start))
            os._exit(1)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
