"""Fine-tuning with few labelled images, of fused networks and of single ones widened to the same size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from ..cell import Cell
from ..cells import FineTune, Parents
from ..cells.finetune import Start
from ..methods import PARTIAL_OT
from ..recipes import Pair, TrainingConfig
from ..report import Row, Table, Value, Verdict
from .runs import Results, measured
from .settings import ALPHAS, Scale, alphas, mnist_pairs, split_resnet_pairs, tested

Numbers = Sequence[str | None]
RULE = (
    "Partial OT matches channels by weights, and statistics of batch norms follow the data-free rule, both as in the "
    "paper. For these ResNet-18, which are narrow and trained for a short time, that explains the low figures before "
    "fine-tuning: [matched by activations and with measured statistics](split_norms.md) they are much higher."
)


@dataclass(frozen=True)
class Tuning:
    """Pairs fine-tuned at every alpha.

    Attributes:
        pairs: pairs of networks.
        images: the number of labelled images.
        training: the hyperparameters of the fine-tuning; the seed of the order is set to the number of the pair.
        scale: the scale of the study.
        alphas: the sizes.
    """

    pairs: Sequence[Pair]
    images: int
    training: TrainingConfig
    scale: Scale
    alphas: tuple[float, ...]

    def cells(self, start: Start, share: float = 0.5) -> list[Cell]:
        return [self.cell(k, start, alpha, share) for k in range(len(self.pairs)) for alpha in self.alphas]

    def cell(self, number: int, start: Start, alpha: float, share: float = 0.5) -> FineTune:
        training = replace(self.training, order=number)
        if alpha == 0 and start != "fusion":
            start = "net2net"  # nothing is widened: one cell serves both
        return FineTune(
            self.pairs[number], start, alpha, share, PARTIAL_OT, self.images, training, number, tested(self.scale)
        )

    def row(
        self, results: Results, label: str, start: Start, what: str, share: float = 0.5, paper: Numbers | None = None
    ) -> Row:
        """Accuracies "before" or "after" fine-tuning, with a column for each alpha."""
        published = dict(zip(ALPHAS, paper, strict=True)) if paper is not None and self.scale != "quick" else {}
        numbers = [published.get(a) for a in self.alphas]
        values = [
            Value.of((results(self.cell(k, start, a, share))[what] for k in range(len(self.pairs))), paper=p)
            for a, p in zip(self.alphas, numbers, strict=True)
        ]
        return (label, *values)

    def mean(self, results: Results, start: Start, alpha: float, what: str, share: float = 0.5) -> float:
        """The mean accuracy over the pairs, "before" or "after" fine-tuning."""
        return fmean(results(self.cell(k, start, alpha, share))[what] for k in range(len(self.pairs)))

    def curve(self, results: Results, start: Start, what: str, share: float = 0.5) -> list[float]:
        """Mean accuracies at every alpha."""
        return [self.mean(results, start, alpha, what, share) for alpha in self.alphas]

    def alone(self, results: Results) -> tuple[float, float]:
        """The mean accuracies of models A and B."""
        found = [results(cell) for cell in self.parents()]
        return fmean(f["a"] for f in found), fmean(f["b"] for f in found)

    def listed(self, numbers: Sequence[float]) -> str:
        """Numbers with their alphas."""
        return ", ".join(f"{number:.2f} (α = {a:g})" for number, a in zip(numbers, self.alphas, strict=True))

    def parents(self) -> list[Cell]:
        return [Parents(pair, (0.5,), tested(self.scale)) for pair in self.pairs]

    def note(self, results: Results, paper: str) -> str:
        a, b = self.alone(results)
        alone = f"Models A and B alone: {a:.2f} and {b:.2f} % (paper: {paper})."
        optimiser = f"{'Adam' if self.training.adam else 'SGD'} (learning rate {self.training.rate:g})"
        how = f"{self.training.epochs} epochs with {optimiser} on {self.images:,} images"
        return f"{alone} Fine-tuning takes {how}; the last epoch is used."

    def table(
        self, results: Results, name: str, title: str, rows: Callable[[Results], Sequence[Row]], note: str
    ) -> Table:
        """Rows with a column for each alpha."""
        columns = ("", *(f"α = {a:g}" for a in self.alphas))
        return measured(results, lambda r: Table(name, title, columns, tuple(rows(r)), note))


def rises(tuning: Tuning, curve: Sequence[float], claim: str) -> Verdict:
    """The verdict on the claim that the accuracy rises with every measured alpha."""
    rising = [b >= a for a, b in pairwise(curve)]
    return Verdict.of(claim, rising, tuning.listed(curve), cases="steps").among("α", ALPHAS, tuning.alphas)


def mlps(scale: Scale) -> Tuning:
    """One percent of MNIST, ten epochs of Adam."""
    training = TrainingConfig(0, 1 if scale == "quick" else 10, 64, True, 1e-3, "constant", 0.0, False)
    return Tuning(mnist_pairs(True, scale), 200 if scale == "quick" else 600, training, scale, alphas(scale))


def resnets(scale: Scale, *, coarse: bool = False) -> Tuning:
    """Five percent of CIFAR-10 that no network has seen; SGD with a cosine schedule.

    The usual scale has five epochs at a six times larger rate instead of thirty epochs, and three sizes if it is
    `coarse`.
    """
    epochs, rate = (30, 1e-3) if scale == "full" else (5, 6e-3)
    training = TrainingConfig(0, 1 if scale == "quick" else epochs, 64, False, rate, "cosine", 1e-4, True)
    images = 100 if scale == "quick" else 2500
    sizes = (0.0, 0.4, 0.8) if coarse and scale == "usual" else alphas(scale)
    return Tuning(split_resnet_pairs(scale), images, training, scale, sizes)
