"""Recipes of trained networks: the architecture, the training images and the hyperparameters.

Recipes are part of the cells' configurations; `stored_as` gives the names that committed results and checkpoints are
hashed under.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .data import DataName

NetworkName = Literal["mlp", "vgg11", "resnet18", "vit"]
Part = Literal["all", "specialist", "generalist", "even", "odd"]
Schedule = Literal["constant", "one-cycle", "cosine", "halving"]


@dataclass(frozen=True)
class Subset:
    """Which of the training images a network sees.

    Attributes:
        data: the data set.
        part: MNIST: "specialist" has all images of one digit and a tenth of the others, "generalist" has the other nine
            tenths of the others, "all" has everything. CIFAR-10: "even" has 4,600 images of each class with an even
            number and 150 of each other class, "odd" the reverse, "all" everything but the 250 held-out images of each
            class.
        seed: random seed of MNIST's parts; a specialist and a generalist with the same seed have no image in common.
        limit: the maximal number of images; None for all.
    """

    stored_as: ClassVar[str] = "Share"

    data: DataName
    part: Part = "all"
    seed: int = 0
    limit: int | None = None


@dataclass(frozen=True)
class TrainingConfig:
    """The hyperparameters of a training run.

    Attributes:
        order: random seed of the order of the images and of their augmentation.
        epochs: number of passes over the images.
        batch: batch size; a last, smaller batch is dropped.
        adam: whether to use Adam instead of SGD with Nesterov momentum 0.9 (0.95 to 0.85 and back under "one-cycle").
        rate: the learning rate; with a schedule, the largest one.
        schedule: the learning rate schedule; "halving" halves the rate every 30 epochs.
        decay: weight decay.
        augment: whether images are randomly cropped (padding 4) and flipped.
    """

    stored_as: ClassVar[str] = "Course"

    order: int
    epochs: int
    batch: int = 128
    adam: bool = False
    rate: float = 0.1
    schedule: Schedule = "one-cycle"
    decay: float = 5e-4
    augment: bool = True


@dataclass(frozen=True)
class Recipe:
    """A network and how it is trained; equal recipes give equal networks.

    Attributes:
        network: the architecture.
        width: channels of the hidden layers (mlp), of the first block (vgg11 and resnet18; 64 is standard) or of the
            residual stream (vit).
        subset: the training images.
        start: random seed of the initial weights.
        training: the hyperparameters.
        select: whether to keep the epoch that is best on held-out training images instead of the last one.
    """

    stored_as: ClassVar[str] = "Training"

    network: NetworkName
    width: int
    subset: Subset = field(metadata={"stored_as": "share"})
    start: int
    training: TrainingConfig = field(metadata={"stored_as": "course"})
    select: bool = False

    @property
    def name(self) -> str:
        """A readable name: the network, its width, the part of the data and the seed of the initial weights."""
        return f"{self.network}-w{self.width}-{self.subset.part}{self.subset.seed}-start{self.start}"


@dataclass(frozen=True)
class Pair:
    """The two networks that are fused: the paper's A and B."""

    a: Recipe
    b: Recipe

    @property
    def data(self) -> DataName:
        return self.b.subset.data


def mlp_recipe(part: Part, seed: int, *, model: int, width: int = 100, epochs: int = 50) -> Recipe:
    """The paper's MLP on MNIST: three hidden layers, GELU, no biases, Adam at 1e-3 in batches of 64.

    Args:
        part: the part of MNIST that it sees.
        seed: random seed of the pair.
        model: 0 for A, 1 for B; the two differ in their initial weights and in the order of the images.
        width: width of the hidden layers.
        epochs: 50 in the paper, and 5 in its table of capacities.
    """
    start = 2 * seed + model
    training = TrainingConfig(start, epochs, 64, True, 1e-3, "constant", 0.0, False)
    return Recipe("mlp", width, Subset("mnist", part, seed if part != "all" else 0), start, training)


def vit_recipe(start: int, *, width: int = 64, epochs: int = 6) -> Recipe:
    """A small vision transformer on all of MNIST: Adam at 1e-3 in batches of 128, cosine schedule.

    Args:
        start: random seed of the initial weights and of the order of the images.
        width: width of the residual stream.
        epochs: number of passes over the images.
    """
    training = TrainingConfig(start, epochs, 128, True, 1e-3, "cosine", 0.0, False)
    return Recipe("vit", width, Subset("mnist"), start, training)


def cifar_vit_recipe(start: int, *, part: Part = "all", width: int = 96, epochs: int = 5) -> Recipe:
    """A small vision transformer on CIFAR-10: Adam at 1e-3 in batches of 64, one cycle: short, for CPUs.

    Args:
        start: random seed of the initial weights and of the order of the images.
        part: the part of CIFAR-10 that it sees.
        width: width of the residual stream; there is a block for every 16 channels.
        epochs: number of passes over the images.
    """
    training = TrainingConfig(start, epochs, 64, True, 1e-3, "one-cycle", 0.0, False)
    return Recipe("vit", width, Subset("cifar10", part), start, training)


def short_recipe(
    network: NetworkName,
    *,
    start: int,
    order: int,
    epochs: int,
    part: Part = "all",
    rate: float = 0.2,
    batch: int = 128,
    decay: float = 5e-4,
) -> Recipe:
    """A network of a quarter of the standard width on CIFAR-10 with a short one-cycle schedule, for two CPU cores."""
    return Recipe(
        network, 16, Subset("cifar10", part), start, TrainingConfig(order, epochs, batch, rate=rate, decay=decay)
    )
