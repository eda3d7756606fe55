"""What a trained network is made of: its architecture, the images it sees, the steps it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .data import DataName

NetworkName = Literal["mlp", "vgg11", "resnet18"]
Part = Literal["all", "specialist", "generalist", "even", "odd"]
Schedule = Literal["constant", "one-cycle", "cosine", "halving"]


@dataclass(frozen=True)
class Share:
    """Which of the training images a network sees.

    Attributes:
        data: the data set.
        part: MNIST: "specialist" has all of one digit and a tenth of the others, "generalist" the other nine tenths of
            the others, "all" everything. CIFAR-10: "even" has 4,600 images of each class of even number and 150 of each
            odd one, "odd" the reverse, "all" everything but the 250 held-out images of each class.
        seed: of the draw of MNIST's parts; the same seed makes parts that go together.
        limit: at most so many images; None for all.
    """

    data: DataName
    part: Part = "all"
    seed: int = 0
    limit: int | None = None


@dataclass(frozen=True)
class Course:
    """The steps of a training, whatever is trained.

    Attributes:
        order: the seed of the order of the images and of their augmentation.
        epochs, batch: how often the images are seen, and how many at once; a last smaller batch is left out.
        adam: Adam instead of SGD with Nesterov momentum 0.9 (from 0.95 to 0.85 and back under "one-cycle").
        rate: the learning rate; the largest one where it follows a schedule.
        schedule: "halving" halves every 30 epochs.
        decay: weight decay.
        augment: random crops (padding 4) and flips.
    """

    order: int
    epochs: int
    batch: int = 128
    adam: bool = False
    rate: float = 0.1
    schedule: Schedule = "one-cycle"
    decay: float = 5e-4
    augment: bool = True


@dataclass(frozen=True)
class Training:
    """A network and how it is trained; equal recipes make equal networks.

    Attributes:
        network: the architecture.
        width: of the hidden layers (mlp) or of the first block (vgg11, resnet18, where 64 is usual).
        share: the training images.
        start: the seed of the first weights.
        course: the steps.
        select: keep the epoch that is best on held-out training images, not the last one.
    """

    network: NetworkName
    width: int
    share: Share
    start: int
    course: Course
    select: bool = False

    @property
    def name(self) -> str:
        """A short name for people: the network, its width, the part of the data and the start."""
        return f"{self.network}-w{self.width}-{self.share.part}{self.share.seed}-start{self.start}"


@dataclass(frozen=True)
class Pair:
    """The two networks that are fused: the paper's A and B."""

    a: Training
    b: Training

    @property
    def data(self) -> DataName:
        return self.b.share.data


def mlp_recipe(part: Part, seed: int, *, model: int, width: int = 100, epochs: int = 50) -> Training:
    """The paper's MLP on MNIST: three hidden layers, GELU, no biases, Adam at 1e-3 in batches of 64.

    Args:
        part: of MNIST.
        seed: of the pair.
        model: 0 for A, 1 for B; the two differ in their starts and in the order of the images.
        width: of the hidden layers.
        epochs: 50; 5 in the table of capacities.
    """
    own = 2 * seed + model
    course = Course(own, epochs, 64, True, 1e-3, "constant", 0.0, False)
    return Training("mlp", width, Share("mnist", part, seed if part != "all" else 0), own, course)


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
) -> Training:
    """A network of a quarter of the width on CIFAR-10 with a short one-cycle schedule, for two processor cores."""
    return Training(network, 16, Share("cifar10", part), start, Course(order, epochs, batch, rate=rate, decay=decay))
