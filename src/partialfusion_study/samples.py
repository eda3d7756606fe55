"""Parts of the training data: who sees which images, and what is held out."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .data import DataName, Images, load
from .recipes import Share

DIGIT = 4  # the specialist's, as in the paper
HELD = 250  # images of each class of CIFAR-10 that no network is trained on
HELD_SEED = 0  # one draw for all networks, so that what is held out from one is from all
LARGE, SMALL = 4600, 150  # images of each class of CIFAR-10: of one's own classes, of the other model's
CLASSES = 10


@lru_cache(maxsize=8)
def part(share: Share) -> Images:
    """The images of a share, in a fixed order."""
    train = load(share.data).train
    index = _mnist(train.labels, share) if share.data == "mnist" else _cifar(train.labels, share)
    if share.limit is not None:
        index = index[torch.randperm(len(index), generator=_generator(share.seed))[: share.limit]]
    return train[index]


@lru_cache(maxsize=8)
def sample(data: DataName, seed: int, count: int) -> Images:
    """Training images to fine-tune, to calibrate or to choose on, as many of each class.

    Those of CIFAR-10 are among the held-out ones, which no network was trained on.
    """
    train = load(data).train
    index = torch.arange(len(train))
    if data == "cifar10":
        index = torch.cat([i[:HELD] for i in _by_class(train.labels, HELD_SEED)])
    drawn = [i[: count // CLASSES] for i in _by_class(train.labels[index], seed)]
    return train[index[torch.cat(drawn)]]


def unseen(data: DataName, count: int | None) -> Images:
    """The test images, or the first few of them."""
    test = load(data).test
    return test if count is None else test[torch.arange(min(count, len(test)))]


def _mnist(labels: Tensor, share: Share) -> Tensor:
    special = (labels == DIGIT) | (torch.rand(len(labels), generator=_generator(share.seed)) < 0.1)
    chosen = {"all": torch.ones_like(special), "specialist": special, "generalist": ~special}
    return torch.nonzero(chosen[share.part])[:, 0]


def _cifar(labels: Tensor, share: Share) -> Tensor:
    chosen = []
    for k, index in enumerate(_by_class(labels, HELD_SEED)):
        own, others = index[HELD : HELD + LARGE], index[max(HELD, len(index) - SMALL) :]
        parts = {"all": index[HELD:], "even": others if k % 2 else own, "odd": own if k % 2 else others}
        chosen.append(parts[share.part])
    return torch.cat(chosen)


def _by_class(labels: Tensor, seed: int) -> list[Tensor]:
    """The indices of each class, shuffled."""
    generator = _generator(seed)
    indices = [torch.nonzero(labels == k)[:, 0] for k in range(CLASSES)]
    return [i[torch.randperm(len(i), generator=generator)] for i in indices]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
