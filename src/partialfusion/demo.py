"""Two specialists on handwritten digits, fused over a grid of alpha and mix: the study of the demo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import api
from .blueprint import Blueprint
from .core.literals import MethodName
from .core.modules import run
from .core.progress import ProgressCallback
from .errors import DataError, OptionError
from .tradeoff import Frontier
from .tradeoff import frontier as measured

PIXELS, CLASSES = 64, 10
ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SHARES = (0.3, 0.5, 0.7)  # of model A
DIGIT = 4  # the specialist's
STEPS = 1200  # of training
TEST_SHARE = 0.3
SPLIT_SEED = 0  # the test set is the same whatever the seed of a study

Step = Callable[[str], None]


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
    """PyTorch's usual start, drawn from the generator."""
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
    """Two trained networks, what each was trained on, and the images to test on, which neither has seen.

    Attributes:
        a: has seen all of one digit and a tenth of the others.
        b: has seen the rest: nothing of that digit, nine tenths of the others.
        data_a, data_b: their training data.
        test: held-out images of all digits.
        digit: the digit that only A knows.
        seed: of the split, the starts and the order of training.
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
        alpha: the isolated share of channels; None where it means nothing.
        mix: the shares of A and B.
        accuracy: between 0 and 1.
        parameters: effective ones, without the zero blocks.
        ratio: parameters relative to one model.
    """

    method: str
    alpha: float | None
    mix: tuple[float, float]
    accuracy: float
    parameters: int
    ratio: float


@dataclass(frozen=True)
class Study:
    """All points of a study, and what it was made of."""

    seed: int
    digit: int
    trained_a: int
    trained_b: int
    tested: int
    points: tuple[Point, ...]

    def find(self, method: str, *, alpha: float | None = None, share: float | None = None) -> Point:
        """The point of a method, at an alpha and a share of A where it has them."""
        return next(
            p for p in self.points if p.method == method and alpha in (None, p.alpha) and share in (None, p.mix[0])
        )


def load() -> tuple[Sample, Sample]:
    """Training and test images, always the same; the data comes with scikit-learn, nothing is downloaded."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the digits come with scikit-learn, which is not installed: pip install 'partialfusion[demo]'"
        ) from error
    raw = load_digits()
    images = torch.tensor(raw.data, dtype=torch.float32) / 16
    everything = Sample(images, torch.tensor(raw.target, dtype=torch.int64))
    order = torch.randperm(len(everything), generator=_generator(SPLIT_SEED))
    tested = round(TEST_SHARE * len(everything))
    return everything[order[tested:]], everything[order[:tested]]


def split(sample: Sample, digit: int, generator: torch.Generator) -> tuple[Sample, Sample]:
    """The paper's split: all of one digit and a tenth of the others; the other nine tenths of the others."""
    own = torch.nonzero(sample.digits == digit).flatten()
    others = torch.nonzero(sample.digits != digit).flatten()
    others = others[torch.randperm(len(others), generator=generator)]
    tenth = len(others) // 10
    return sample[torch.cat([own, others[:tenth]])], sample[others[tenth:]]


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


def specialists(seed: int = 0, *, digit: int = DIGIT, steps: int = STEPS, on_step: Step | None = None) -> Specialists:
    """Two networks that know different digits, trained in seconds."""
    if not 0 <= digit < CLASSES:
        raise OptionError(f"digit={digit} is not a digit: choose one of 0 … 9")
    tell = on_step or _silent
    training, test = load()
    split_seed, seed_a, seed_b = (_generator(3 * seed + k) for k in range(3))
    data_a, data_b = split(training, digit, split_seed)
    tell(f"training A on {len(data_a)} images")
    a = train(data_a, seed_a, steps=steps)
    tell(f"training B on {len(data_b)} images")
    b = train(data_b, seed_b, steps=steps)
    return Specialists(a, b, data_a, data_b, test, digit, seed)


def study(
    pair: Specialists,
    *,
    alphas: Sequence[float] = ALPHAS,
    shares: Sequence[float] = SHARES,
    on_step: Step | None = None,
) -> Study:
    """The parents, the ensemble, the plain average and the grid of fused networks, all on the test images.

    Nothing is chosen by these figures: every point of the grid is reported.
    """
    tell = on_step or _silent
    tell("tracing")
    blueprint = api.trace(pair.b, pair.data_b.images[:2])
    size = sum(p.numel() for p in pair.b.parameters())
    points = [
        Point("model A", None, (1.0, 0.0), accuracy(logits(pair.a, pair.test), pair.test), size, 1.0),
        Point("model B", None, (0.0, 1.0), accuracy(logits(pair.b, pair.test), pair.test), size, 1.0),
    ]
    mixes = [(share, 1.0 - share) for share in shares]
    points += [_fused(pair, blueprint, "average", 0.0, mix) for mix in mixes]
    for alpha in alphas:
        tell(f"fusing at alpha {alpha:g}")
        points += [_fused(pair, blueprint, "partial-ot", alpha, mix) for mix in mixes]
    points += [_ensemble(pair, mix, 2 * size) for mix in mixes]
    return Study(pair.seed, pair.digit, len(pair.data_a), len(pair.data_b), len(pair.test), tuple(points))


def frontier(pair: Specialists, *, progress: bool | ProgressCallback | None = None) -> Frontier:
    """The networks of the study, measured by the library's own `frontier`, for its page."""
    return measured(
        [pair.a, pair.b],
        pair.data_b.images[:2],
        evaluate=[(pair.test.images, pair.test.digits)],
        alphas=ALPHAS,
        methods=("average", "partial-ot"),
        mixes=SHARES,
        progress=progress,
    )


def tested(model: nn.Module) -> float:
    """Accuracy on the test images of the demo, for `--evaluate`."""
    _, test = load()
    return accuracy(logits(model, test), test)


def logits(model: nn.Module, sample: Sample) -> Tensor:
    """(n × 10)."""
    found: Tensor = run(model, (sample.images,))
    return found


def accuracy(predicted: Tensor, sample: Sample) -> float:
    """The share of images whose largest logit is their digit's."""
    return int((predicted.argmax(1) == sample.digits).sum()) / len(sample)


def _fused(
    pair: Specialists, blueprint: Blueprint, method: MethodName, alpha: float, mix: tuple[float, float]
) -> Point:
    result = api.fuse(
        [pair.a, pair.b], pair.data_b.images[:2], alpha=alpha, mix=mix, method=method, blueprint=blueprint
    )
    found = accuracy(logits(result.model, pair.test), pair.test)
    return Point(method, alpha, mix, found, result.count.effective, result.count.ratio)


def _ensemble(pair: Specialists, mix: tuple[float, float], size: int) -> Point:
    """Both parents run side by side, their logits averaged; no part of the library takes part in it."""
    mean = mix[0] * logits(pair.a, pair.test) + mix[1] * logits(pair.b, pair.test)
    return Point("ensemble", None, mix, accuracy(mean, pair.test), size, 2.0)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _silent(step: str) -> None:
    pass
