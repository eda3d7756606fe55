"""MNIST in its published form: four IDX files, each a magic number, the sizes and the bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from partialfusion.errors import DataError

from .files import as_bytes, content
from .images import DataSet, Images, labelled

SIDE = 28
UNSIGNED_BYTE = 8  # the code of the element type in the magic number
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


def read(paths: Mapping[str, Path]) -> DataSet:
    """The data set from the paths of `FILES`."""
    return DataSet(
        "mnist",
        _part(paths[TRAIN_IMAGES], paths[TRAIN_LABELS]),
        _part(paths[TEST_IMAGES], paths[TEST_LABELS]),
    )


def _part(images: Path, labels: Path) -> Images:
    pixels = parse(content(images), 3, images)
    if tuple(pixels.shape[1:]) != (SIDE, SIDE):
        raise DataError(f"{images} holds images of {pixels.shape[1]} × {pixels.shape[2]} pixels, not {SIDE} × {SIDE}")
    return labelled(pixels[:, None], parse(content(labels), 1, labels), f"{images} and {labels.name}")


def parse(raw: bytes, dims: int, path: Path) -> Tensor:
    """The uint8 array of an IDX file with so many dimensions."""
    start = 4 + 4 * dims
    magic = bytes([0, 0, UNSIGNED_BYTE, dims])
    if raw[:4] != magic:
        raise DataError(f"{path} begins with {raw[:4].hex() or 'nothing'}, an IDX file of its kind with {magic.hex()}")
    sizes = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    expected = start + math.prod(sizes)
    if len(raw) < start or len(raw) != expected:
        raise DataError(f"{path} should hold {expected} bytes by its header but holds {len(raw)}; copy it again")
    return as_bytes(raw, start).reshape(sizes)
