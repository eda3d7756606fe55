"""How a folder of files that belong together is changed: files that are gone, exchanged, foreign, or no files."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from partialfusion.io.hf import INDEX
from partialfusion.io.pretrained import WEIGHTS

from .mutations import Mutation, changed_tree, signed

FolderMutation = Callable[[Path, random.Random], None]

# Where a name in a list of files may lead that it must not: elsewhere, to what never ends, or nowhere.
ELSEWHERE = (
    *("../state.safetensors", "../../x", "/etc/passwd", "/dev/zero", "/dev/stdin", "/", "..", ".", "", "~"),
    *("a/b.safetensors", "..\\x", "\0", "x\ny", "é" * 300, "x" * 5000, "model.safetensors", "file:///etc/passwd"),
)
NO_FILES = "/dev/zero", "/dev/full", "/dev/null", "/etc", "nowhere", ".."


def missing(path: Path, rng: random.Random) -> None:
    path.unlink()


def swapped(path: Path, rng: random.Random) -> None:
    """Two files under each other's names."""
    other = rng.choice([p for p in path.parent.iterdir() if p.suffix == path.suffix])
    if other == path:
        other = rng.choice(list(path.parent.iterdir()))
    aside = path.with_name("aside")
    os.replace(path, aside)
    if other != path:
        os.replace(other, path)
    os.replace(aside, other)


def foreign(path: Path, rng: random.Random) -> None:
    """A file of the same kind from elsewhere in the corpus."""
    others = sorted(p for p in path.parents[1].rglob(f"*{path.suffix}") if p != path and p.is_file())
    content = rng.choice(others).read_bytes()
    path.write_bytes(content)


def linked(path: Path, rng: random.Random) -> None:
    """A link: to the file itself under another name, to another one, to a device, a folder, nothing or itself."""
    kind = rng.random()
    if kind < 0.2:
        kept = path.parents[1] / f"kept{path.suffix}"
        shutil.move(path, kept)
        path.symlink_to(kept)
        return
    path.unlink()
    if kind < 0.4:
        path.symlink_to(rng.choice(sorted(p for p in path.parents[1].rglob("*") if p.is_file())))
    else:
        path.symlink_to(rng.choice((*NO_FILES, path.name)))


def no_file(path: Path, rng: random.Random) -> None:
    """A pipe or a folder in the place of the file."""
    path.unlink()
    rng.choice((os.mkfifo, os.mkdir))(path)


def listed_elsewhere(content: bytes, rng: random.Random) -> bytes:
    """An index of shards with one or all of them elsewhere."""
    index = json.loads(content)
    places: dict[str, Any] = index["weight_map"]
    name, chosen = rng.choice(ELSEWHERE), rng.choice(list(places.values()))
    places |= {key: name for key, value in places.items() if value == chosen}
    return json.dumps(index).encode()


def stored_elsewhere(content: bytes, rng: random.Random) -> bytes:
    """The header of a stored fusion with its shards elsewhere, in another order, or with other hashes."""

    def change(record: dict[str, Any]) -> dict[str, Any]:
        shards = list(record.get("shards", {}).items())
        if not shards or rng.random() < 0.2:
            return {**record, "shards": changed_tree(record.get("shards", {"x": "y"}), rng)}
        at = rng.randrange(len(shards))
        kind = rng.random()
        if kind < 0.6:
            shards[at] = rng.choice(ELSEWHERE), shards[at][1]
        elif kind < 0.8:
            rng.shuffle(shards)
        else:
            del shards[at]
        return {**record, "shards": dict(shards)}

    return signed(content, change)


FOLDER: dict[str, FolderMutation] = {
    "missing": missing,
    "swapped": swapped,
    "foreign": foreign,
    "linked": linked,
    "no file": no_file,
}


def mutations_of_lists(path: Path) -> dict[str, Mutation]:
    """The mutations of a file that lists others in its folder."""
    known: dict[str, dict[str, Mutation]] = {
        INDEX: {"elsewhere": listed_elsewhere},
        WEIGHTS: {"shards": stored_elsewhere},
    }
    return known.get(path.name, {})
