"""Subsets of the data: which network is trained on which images, and which images are held out."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .data import DataName, Images, load
from .recipes import Subset

DIGIT = 4  # the digit of the specialist, as in the paper
HELD_OUT = 250  # images of each class of CIFAR-10 that no network is trained on
HELD_OUT_SEED = 0  # one draw, so that the same images are held out from all networks
LARGE, SMALL = 4600, 150  # images of each class of CIFAR-10: of a model's own classes, of the other model's
CLASSES = 10


@lru_cache(maxsize=8)
def part(subset: Subset) -> Images:
    """The images of a subset, in a fixed order."""
    train = load(subset.data).train
    index = _mnist(train.labels, subset) if subset.data == "mnist" else _cifar(train.labels, subset)
    if subset.limit is not None:
        index = index[torch.randperm(len(index), generator=_generator(subset.seed))[: subset.limit]]
    return train[index]


@lru_cache(maxsize=8)
def sample(data: DataName, seed: int, count: int) -> Images:
    """Training images for fine-tuning, calibration or selection, the same number of each class.

    Those of CIFAR-10 are held-out images, on which no network was trained.
    """
    train = load(data).train
    index = torch.arange(len(train))
    if data == "cifar10":
        index = torch.cat([i[:HELD_OUT] for i in _by_class(train.labels, HELD_OUT_SEED)])
    drawn = [i[: count // CLASSES] for i in _by_class(train.labels[index], seed)]
    return train[index[torch.cat(drawn)]]


@lru_cache(maxsize=8)
def test_sample(data: DataName, seed: int, count: int) -> Images:
    """Test images, the same number of each class."""
    test = load(data).test
    return test[torch.cat([i[: count // CLASSES] for i in _by_class(test.labels, seed)])]


def evaluation_images(data: DataName, count: int | None) -> Images:
    """The test images, or the first few of them."""
    test = load(data).test
    return test if count is None else test[torch.arange(min(count, len(test)))]


def _mnist(labels: Tensor, subset: Subset) -> Tensor:
    special = (labels == DIGIT) | (torch.rand(len(labels), generator=_generator(subset.seed)) < 0.1)
    chosen = {"all": torch.ones_like(special), "specialist": special, "generalist": ~special}
    return torch.nonzero(chosen[subset.part])[:, 0]


def _cifar(labels: Tensor, subset: Subset) -> Tensor:
    chosen = []
    for k, index in enumerate(_by_class(labels, HELD_OUT_SEED)):
        own, others = index[HELD_OUT : HELD_OUT + LARGE], index[max(HELD_OUT, len(index) - SMALL) :]
        parts = {"all": index[HELD_OUT:], "even": others if k % 2 else own, "odd": own if k % 2 else others}
        chosen.append(parts[subset.part])
    return torch.cat(chosen)


def _by_class(labels: Tensor, seed: int) -> list[Tensor]:
    """The indices of each class, shuffled."""
    generator = _generator(seed)
    indices = [torch.nonzero(labels == k)[:, 0] for k in range(CLASSES)]
    return [i[torch.randperm(len(i), generator=generator)] for i in indices]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
