"""Labelled images and data sets of them, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from partialfusion.errors import DataError
from partialfusion.io.digest import digest

DataName = Literal["mnist", "cifar10"]
TITLES: dict[DataName, str] = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
CLASSES = 10  # in both data sets


@dataclass(frozen=True, eq=False)
class Images:
    """Images and their labels.

    Attributes:
        images: uint8 (n × c × h × w).
        labels: int64 (n,).
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise DataError(f"images must be uint8 (n × c × h × w), not {_described(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.dim() != 1:
            raise DataError(f"labels must be int64 (n,), not {_described(self.labels)}")
        if len(self.images) != len(self.labels):
            raise DataError(
                f"there are {len(self.images)} images and {len(self.labels)} labels; give one label per image"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> Images:
        return Images(self.images[index], self.labels[index])


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training images and test images."""

    name: str
    train: Images
    test: Images


def normalised(images: Tensor) -> Tensor:
    """Pixels from 0 … 255 (uint8) to −1 … 1 (float32), any shape."""
    return images.float().div_(127.5).sub_(1)


def tensors(data: DataSet) -> dict[str, Tensor]:
    """The four tensors of a data set under their names in the cache."""
    return {
        "train_images": data.train.images,
        "train_labels": data.train.labels,
        "test_images": data.test.images,
        "test_labels": data.test.labels,
    }


def from_tensors(name: str, parts: Mapping[str, Tensor]) -> DataSet:
    """The inverse of `tensors`."""
    return DataSet(
        name,
        Images(parts["train_images"], parts["train_labels"]),
        Images(parts["test_images"], parts["test_labels"]),
    )


def checksum(data: DataSet) -> str:
    """SHA-256 of names, types, shapes and bytes: the same for every file format."""
    return digest(tensors(data).items())


def labelled(images: Tensor, labels: Tensor, what: str) -> Images:
    """Images with their labels, checked; errors name the files by `what`."""
    if len(images) != len(labels):
        raise DataError(f"{what}: {len(images)} images but {len(labels)} labels; copy the files again")
    if not len(images):
        raise DataError(f"{what}: the files contain no images; copy them again")
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= CLASSES:
        raise DataError(f"{what}: labels from {least} to {most}, not from 0 to {CLASSES - 1}; copy the files again")
    return Images(images, labels.to(torch.int64))


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
