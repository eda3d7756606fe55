"""Stored fusions in several files: one with the header and small tensors, and shards beside it with all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from .digest import Digest, ShardDigest
from .files import existing, reading
from .header import Stored, damaged, from_file, shard_path


class Shards:
    """Opened safetensors files that read like one."""

    def __init__(self, files: Sequence[Any]) -> None:
        self.files = files
        self._holder = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def keys(self) -> list[str]:
        return list(self._holder)

    def get_slice(self, name: str) -> Any:
        return self._holder[name].get_slice(name)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Shards, Stored]]:
    """A stored fusion, with its shards where it has any, and its header."""
    with ExitStack() as stack:
        first = stack.enter_context(reading(path))
        stored = from_file(first, path)
        others = [stack.enter_context(reading(existing(shard_path(path, name)))) for name in stored.shards]
        yield Shards([first, *others]), stored


def contents(shards: Shards, stored: Stored, path: Path) -> Iterator[tuple[str, Tensor]]:
    """What is stored of every tensor; the hashes of all that was read must match the header."""
    first, *others = shards.files
    own = [name for name in first.keys() if name in stored.packings]  # noqa: SIM118
    yield from _verified(first, own, Digest(), stored.payload, path)
    for file, (name, sha256) in zip(others, stored.shards.items(), strict=True):
        yield from _verified(file, file.keys(), ShardDigest(), sha256, shard_path(path, name))


def _verified(
    file: Any, names: Iterable[str], seen: Digest | ShardDigest, sha256: str, path: Path
) -> Iterator[tuple[str, Tensor]]:
    for name in sorted(names):
        content = file.get_tensor(name)
        seen.add(name, content)
        yield name, content
    if seen.hex() != sha256:
        raise CheckpointError(damaged(path, "its numbers are not those that were written"))


def shard_digest(path: Path) -> str:
    """The hash of the tensors in a file."""
    seen = ShardDigest()
    with reading(existing(path)) as file:
        for name in file.keys():  # noqa: SIM118
            seen.add(name, file.get_tensor(name))
    return seen.hex()
