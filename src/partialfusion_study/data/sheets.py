"""CIFAR-10 as PNG sheets: every row of a sheet is one image, its 1,024 pixels in reading order; labels as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from partialfusion.errors import DataError

from .files import content
from .images import DataSet, labelled

SIDE = 32
TRAIN = tuple(f"data_batch_{k}.png" for k in range(1, 6))
TEST = "test_batch.png"
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"  # spelt as the package that holds them spells it
FILES = (*TRAIN, TEST, TRAIN_LABELS, TEST_LABELS)


def read(paths: Mapping[str, Path]) -> DataSet:
    """The data set from the paths of `FILES`."""
    train = torch.cat([_sheet(paths[name]) for name in TRAIN])
    test = _sheet(paths[TEST])
    return DataSet(
        "cifar10",
        labelled(train, _labels(paths[TRAIN_LABELS]), f"{paths[TRAIN[0]].parent}: {TRAIN_LABELS} and its sheets"),
        labelled(test, _labels(paths[TEST_LABELS]), f"{paths[TEST].parent}: {TEST_LABELS} and its sheet"),
    )


def pillow() -> ModuleType:
    """Pillow's module of images, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("PNG sheets are read by Pillow, not installed: pip install 'partialfusion[study]'") from error
    return Image


def _sheet(path: Path) -> Tensor:
    """uint8 (rows of the sheet × 3 × 32 × 32)."""
    image = pillow()
    try:
        with image.open(path, formats=["PNG"]) as sheet:
            pixels = np.array(sheet.convert("RGB"))
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:  # all that Pillow raises
        raise DataError(f"{path} is truncated or not a PNG image ({error}); copy it again") from error
    if pixels.shape[1] != SIDE * SIDE:
        raise DataError(f"{path} is {pixels.shape[1]} pixels wide, a sheet of images {SIDE * SIDE}")
    return torch.from_numpy(pixels).reshape(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()


def _labels(path: Path) -> Tensor:
    """int64 (n,)."""
    try:
        found = json.loads(content(path))
    except ValueError as error:
        raise DataError(f"{path} is truncated or not JSON ({error}); copy it again") from error
    if not isinstance(found, list) or not all(type(label) is int and abs(label) < 256 for label in found):
        raise DataError(f"{path} must hold a list of whole numbers, one an image")
    return torch.tensor(found, dtype=torch.int64)
