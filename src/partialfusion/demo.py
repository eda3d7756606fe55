"""The demo: two specialists on handwritten digits, fused over a grid of alphas and mixes and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .core.inputs import Inputs, Signature, run
from .core.literals import RoundTo
from .core.progress import ProgressCallback, silent
from .errors import DataError, FusionError, OptionError
from .fusing.scoring import Accuracy
from .tradeoff import Frontier, frontier
from .tradeoff import Point as FrontierPoint

PIXELS, CLASSES = 64, 10
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)  # multiples of 16 channels, which kernels like
SHARES = (0.3, 0.5, 0.7)  # the share of model A in the mix
# What is measured: the first two without data, the last fitted to the two networks on unlabelled images.
METHODS: dict[str, dict[str, Any]] = {
    "average": {"method": "average", "features": "weights", "norm": "analytic"},
    "partial-ot": {"method": "partial-ot", "features": "weights", "norm": "analytic"},
    "interpolate": {"method": "interpolate", "refit": True},
}
DIGIT = 4  # the digit that only model A knows
STEPS = 1200  # training steps of each model
TEST_FRACTION = 0.3
SPLIT_SEED = 0  # fixed, so that every seed of the demo has the same test images


class DigitsNet(nn.Module):
    """64 pixels → three hidden layers with GELU and biases → 10 logits; the paper's MLPs, smaller."""

    def __init__(self, width: int = 64, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.hidden1 = _linear(PIXELS, width, generator)
        self.hidden2 = _linear(width, width, generator)
        self.hidden3 = _linear(width, width, generator)
        self.output = _linear(width, CLASSES, generator)

    def forward(self, x: Tensor) -> Tensor:
        """(batch × 64) → (batch × 10)."""
        for layer in (self.hidden1, self.hidden2, self.hidden3):
            x = F.gelu(layer(x))
        logits: Tensor = self.output(x)
        return logits


def _linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer with PyTorch's default initialisation, drawn from the generator."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


@dataclass(frozen=True, eq=False)
class Sample:
    """Images (n × 64), pixels from 0 to 1, and their digits (n,)."""

    images: Tensor
    digits: Tensor

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: Tensor) -> Sample:
        return Sample(self.images[index], self.digits[index])


@dataclass(frozen=True, eq=False)
class Specialists:
    """Two trained networks, the data each was trained on, and test images that neither has seen.

    Attributes:
        a: a network trained on all images of one digit and a tenth of the others.
        b: a network trained on the rest: no image of that digit, nine tenths of the others.
        data_a, data_b: the training data of the two networks.
        test: held-out images of all digits.
        digit: the digit that only A knows.
        seed: random seed of the split, the initialisations and the training batches.
    """

    a: nn.Module
    b: nn.Module
    data_a: Sample
    data_b: Sample
    test: Sample
    digit: int
    seed: int


@dataclass(frozen=True)
class Point:
    """One network, measured on the test images.

    Attributes:
        method: "model A", "model B", "ensemble", or a method of `fuse`.
        alpha: the isolated fraction of the channels; None for the parents and the ensemble.
        mix: the shares of A and B.
        accuracy: fraction of the test images that are classified correctly.
        dense: parameters of the module.
        effective: parameters without the zero blocks, as blocks and files hold them.
        ratio, effective_ratio: the two relative to one model.
    """

    method: str
    alpha: float | None
    mix: tuple[float, float]
    accuracy: float
    dense: int
    effective: int
    ratio: float
    effective_ratio: float


@dataclass(frozen=True)
class Study:
    """Every network that the demo measured.

    Attributes:
        seed: random seed of the specialists.
        digit: the digit that only A knows.
        trained_a, trained_b: numbers of training images.
        tested: number of test images.
        points: the parents, the plain average, the fused networks and the ensembles.
        frontier: the measurements that the points are taken from; it writes the page.
    """

    seed: int
    digit: int
    trained_a: int
    trained_b: int
    tested: int
    points: tuple[Point, ...]
    frontier: Frontier = field(compare=False, repr=False)

    def find(self, method: str, *, alpha: float | None = None, share: float | None = None) -> Point:
        """The point of a method, at an alpha and a share of A where these are given."""
        return next(
            p for p in self.points if p.method == method and alpha in (None, p.alpha) and share in (None, p.mix[0])
        )

    def record(self) -> dict[str, Any]:
        """The study as plain values, without the frontier."""
        counts = {name: getattr(self, name) for name in ("seed", "digit", "trained_a", "trained_b", "tested")}
        return {**counts, "points": [asdict(point) for point in self.points]}


def load() -> tuple[Sample, Sample]:
    """Training and test images, always the same; the data is part of scikit-learn, nothing is downloaded."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the digits are part of scikit-learn, which is not installed: pip install 'partialfusion[demo]'"
        ) from error
    raw = load_digits()
    images = torch.tensor(raw.data, dtype=torch.float32) / 16
    everything = Sample(images, torch.tensor(raw.target, dtype=torch.int64))
    order = torch.randperm(len(everything), generator=_generator(SPLIT_SEED))
    tested = round(TEST_FRACTION * len(everything))
    return everything[order[tested:]], everything[order[:tested]]


def split(sample: Sample, digit: int, generator: torch.Generator) -> tuple[Sample, Sample]:
    """The paper's split: all images of one digit and a tenth of the others; the other nine tenths of the others."""
    special = torch.nonzero(sample.digits == digit).flatten()
    others = torch.nonzero(sample.digits != digit).flatten()
    others = others[torch.randperm(len(others), generator=generator)]
    tenth = len(others) // 10
    return sample[torch.cat([special, others[:tenth]])], sample[others[tenth:]]


def train(sample: Sample, generator: torch.Generator, *, steps: int = STEPS, batch: int = 32) -> DigitsNet:
    """A network trained with Adam on batches drawn from the sample."""
    net = DigitsNet(generator=generator)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        drawn = sample[torch.randint(len(sample), (batch,), generator=generator)]
        optimiser.zero_grad()
        F.cross_entropy(net(drawn.images), drawn.digits).backward()
        optimiser.step()
    return net.eval()


def specialists(
    seed: int = 0, *, digit: int = DIGIT, steps: int = STEPS, progress: ProgressCallback = silent
) -> Specialists:
    """Two networks that know different digits, trained in seconds."""
    if not 0 <= digit < CLASSES:
        raise OptionError(f"digit={digit} is not a digit: choose one of 0 … 9")
    training, test = load()
    split_seed, seed_a, seed_b = (_generator(3 * seed + k) for k in range(3))
    data_a, data_b = split(training, digit, split_seed)
    progress(f"training A on {len(data_a)} images", 0.0)
    a = train(data_a, seed_a, steps=steps)
    progress(f"training B on {len(data_b)} images", 0.0)
    b = train(data_b, seed_b, steps=steps)
    return Specialists(a, b, data_a, data_b, test, digit, seed)


def study(
    pair: Specialists,
    *,
    alphas: Sequence[float] = ALPHAS,
    shares: Sequence[float] = SHARES,
    round_to: RoundTo = "auto",
    details: bool = False,
    progress: ProgressCallback = silent,
) -> Study:
    """The parents, the ensemble, the plain average and the grid of fused networks, all on the test images.

    The networks of `interpolate` are fitted to the parents on the training images, without labels. Nothing is chosen by
    the accuracies: every point of the grid is reported. The first network that cannot be fused or measured is an error,
    and Ctrl-C ends the study without a result.

    Args:
        pair: the trained networks with their data.
        alphas: isolated fractions of the channels.
        shares: shares of model A in the mix.
        round_to: channels that every part of a layer is a multiple of, as for `fuse`.
        details: whether to compare fused and isolated channels too, which the page of the frontier shows.
        progress: callback that gets the current step and the fraction of the work that is done.
    """
    found = frontier(
        [pair.a, pair.b],
        pair.data_b.images[:2],
        evaluate=[(pair.test.images, pair.test.digits)],
        alphas=alphas,
        methods=METHODS,
        mixes=shares,
        data=unlabelled(pair),
        round_to=round_to,
        size="effective",
        details=details,
        progress=progress,
    )
    if not found.complete:
        raise KeyboardInterrupt
    parents, ensembles, fused = (
        [_point(p, found.points[1]) for p in found.points if p.kind == kind] for kind in ("parent", "ensemble", "fused")
    )
    points = (*parents, *fused, *ensembles)
    return Study(pair.seed, pair.digit, len(pair.data_a), len(pair.data_b), len(pair.test), points, found)


def unlabelled(pair: Specialists) -> list[Tensor]:
    """The training images of both networks, in batches, without their labels."""
    return list(torch.cat([pair.data_a.images, pair.data_b.images]).split(256))


def _point(measured: FrontierPoint, single: FrontierPoint) -> Point:
    """A point of the frontier, relative to one of the models."""
    dense, effective, one = measured.dense, measured.effective, single.dense
    if measured.score is None or dense is None or effective is None or one is None:
        raise FusionError(f"{measured.method} at alpha {measured.alpha} could not be measured: {measured.error}")
    share_a, share_b = measured.mix
    sizes = dense, effective, dense / one, effective / one
    return Point(measured.method, measured.alpha, (share_a, share_b), measured.score, *sizes)


def tested(model: nn.Module) -> float:
    """Accuracy on the test images of the demo, for `--evaluate`."""
    _, test = load()
    return accuracy(logits(model, test), test)


def logits(model: nn.Module, sample: Sample) -> Tensor:
    """(n × 10) outputs of a model."""
    return run(model, Inputs.of(sample.images))[0]


def accuracy(outputs: Tensor, sample: Sample) -> float:
    """The fraction of images whose largest logit is their digit's."""
    return Accuracy([(outputs, sample.digits)], Signature())(nn.Identity()).value


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
