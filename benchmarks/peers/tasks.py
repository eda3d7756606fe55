"""What is merged or pruned, to which size, and how a result is scored."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from torch import Tensor, nn

import partialfusion as pf
from partialfusion_study.data import DataName
from partialfusion_study.experiments.settings import mnist_pairs, resnet_pairs, split_resnet_pairs, vgg_pairs
from partialfusion_study.methods import batches
from partialfusion_study.recipes import Recipe
from partialfusion_study.samples import evaluation_images
from partialfusion_study.trained import example, trained
from partialfusion_study.training import accuracy, logits, percent

IMAGES = 1000
SEED = 0


@dataclass(frozen=True)
class Task:
    """Networks to merge, or one to prune, and the size to reach; measured on one or several sets of networks.

    Attributes:
        key: a short name.
        title: the heading of its table.
        recipes: what gives, for each repetition, the networks.
        dense: the size to reach, all parameters relative to one network; for pruning None: that of `keep`.
        keep: for pruning, the fraction of the channels that is kept.
        share: for merging, the share of the last network.
    """

    key: str
    title: str
    recipes: Callable[[], list[tuple[Recipe, ...]]]
    dense: float | None = None
    keep: float | None = None
    share: float = 0.5

    @cached_property
    def cases(self) -> list[Case]:
        return [Case(self, recipes) for recipes in self.recipes()]

    @property
    def merges(self) -> bool:
        return self.keep is None

    @property
    def alpha(self) -> float:
        """The isolated fraction, the same in all spaces, at which a merged network has the size to reach."""
        assert self.dense is not None
        return math.sqrt(self.dense) - 1.0


@dataclass(frozen=True)
class Case:
    """The networks of one repetition, the images, and the score of a result."""

    task: Task
    recipes: tuple[Recipe, ...]

    @property
    def data_name(self) -> DataName:
        return self.recipes[-1].subset.data

    @property
    def models(self) -> list[nn.Module]:
        """The trained networks; they must not be changed."""
        return [trained(recipe) for recipe in self.recipes]

    @property
    def mix(self) -> tuple[float, ...]:
        return (1.0,) if len(self.recipes) == 1 else (1.0 - self.task.share, self.task.share)

    @property
    def example(self) -> Tensor:
        return example(self.recipes[-1])

    @property
    def data(self) -> list[Tensor]:
        """Unlabelled images, which no network of CIFAR-10 was trained on, in batches of 250."""
        return list(batches(self.data_name, SEED, IMAGES))

    def score(self, model: nn.Module) -> float:
        """Accuracy on all test images, in percent."""
        return accuracy(model, evaluation_images(self.data_name, None))

    def ratio(self, model: nn.Module) -> float:
        """All parameters of a result, relative to one network."""
        return parameters(model) / parameters(self.models[-1])

    def budget(self) -> float:
        """The size to reach, all parameters relative to one network."""
        return self.task.dense or _size_of_half(self.recipes[-1], self.task.keep or 0.5)

    def sources(self) -> dict[str, float]:
        """Accuracy of the networks, and of their ensemble, in percent."""
        test = evaluation_images(self.data_name, None)
        found = [logits(model, test.images) for model in self.models]
        if len(found) == 1:
            return {"the network": percent(found[0], test.labels)}
        names = {f"network {name}": percent(x, test.labels) for name, x in zip("AB", found, strict=True)}
        mixed = sum(share * x for share, x in zip(self.mix, found, strict=True))
        assert isinstance(mixed, Tensor)
        return names | {"ensemble": percent(mixed, test.labels)}


def parameters(model: nn.Module) -> int:
    """The number of all parameters of a module."""
    return sum(p.numel() for p in model.parameters())


@lru_cache
def _size_of_half(recipe: Recipe, keep: float) -> float:
    model = trained(recipe)
    pruned = pf.prune(model, example(recipe), keep=keep, method="magnitude", round_to=1, progress=False)
    return parameters(pruned.model) / parameters(model)


def _specialists() -> list[tuple[Recipe, ...]]:
    return [(pair.a, pair.b) for pair in split_resnet_pairs("usual")]


def _resnet() -> list[tuple[Recipe, ...]]:
    return [(pair.a,) for pair in resnet_pairs("usual")]


def _vgg() -> list[tuple[Recipe, ...]]:
    return [(pair.a,) for pair in vgg_pairs("usual")]


def _digits() -> list[tuple[Recipe, ...]]:
    return [(pair.a, pair.b) for pair in mnist_pairs(True, "usual")]


TASKS = (
    Task("specialists", "Two ResNet-18 specialists merged, at the size of one", _specialists, dense=1.0),
    Task("specialists-1.2", "Two ResNet-18 specialists merged, at 1.2 times that size", _specialists, dense=1.2),
    Task("resnet", "One ResNet-18 at half of its channels, or as many parameters", _resnet, keep=0.5),
    Task("vgg", "One VGG-11 at half of its channels, or as many parameters", _vgg, keep=0.5),
    Task("digits-0.5", "Two MLPs on split MNIST merged, at the size of one, equal shares", _digits, dense=1.0),
    Task("digits-0.3", "The same two MLPs, share of the generalist 0.3", _digits, dense=1.0, share=0.3),
)
