"""Data large enough to train tiny networks on: striped images whose class shows, in the published forms, and text."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

CLASSES = 10


def write_small_data(folder: Path) -> Path:
    """MNIST as IDX files and CIFAR-10 in its binary version, of a few thousand images; modules and pages as text."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 1500), ("t10k", 300)):
        images, labels = _images(rng, count, (28, 28))
        head = struct.pack(">iiii", 2051, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, count) + labels.tobytes())
    batches = folder / "cifar-10-batches-bin"
    batches.mkdir()
    for name, count in [(f"data_batch_{k}.bin", 640) for k in range(1, 6)] + [("test_batch.bin", 300)]:
        images, labels = _images(rng, count, (3, 32, 32))
        rows = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
        (batches / name).write_bytes(rows.tobytes())
    write_small_text(folder)
    return folder


def write_small_text(folder: Path) -> None:
    """A few modules of the standard library in python/, a few pages of this checkout in prose/."""
    modules = sorted(Path(json.__file__).parent.glob("*.py"))
    pages = sorted(Path(__file__).parents[2].glob("*.md"))
    for domain, ending, files in (("python", ".py", modules), ("prose", ".txt", pages)):
        (folder / domain).mkdir()
        for path in files:
            (folder / domain / path.with_suffix(ending).name).write_bytes(path.read_bytes())


def _images(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """As many of each class; a bright stripe stands where the class says, in noise."""
    labels = rng.permutation(np.arange(count) % CLASSES).astype(np.uint8)
    images = rng.integers(0, 60, (count, *shape), np.uint8)
    width = shape[-1] // CLASSES
    for k in range(CLASSES):
        images[labels == k, ..., k * width : (k + 1) * width] += 150
    return images, labels
