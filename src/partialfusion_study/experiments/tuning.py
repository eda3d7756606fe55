"""Fine-tuning with few labelled images, of fused networks and of single ones widened to the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..cell import Cell
from ..cells import FineTune, Parents
from ..cells.finetune import Start
from ..methods import PARTIAL_OT
from ..recipes import Pair, TrainingConfig
from ..report import Table, Value
from .experiment import Results
from .settings import ALPHAS, Scale, alphas, mnist_pairs, split_resnet_pairs, tested

Numbers = Sequence[float | None]


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
    ) -> tuple[str | Value, ...]:
        """Accuracies "before" or "after" fine-tuning, with a column for each alpha."""
        published = dict(zip(ALPHAS, paper, strict=True)) if paper is not None and self.scale != "quick" else {}
        numbers = [published.get(a) for a in self.alphas]
        values = [
            Value.of((results(self.cell(k, start, a, share))[what] for k in range(len(self.pairs))), paper=p)
            for a, p in zip(self.alphas, numbers, strict=True)
        ]
        return (label, *values)

    def parents(self) -> list[Cell]:
        return [Parents(pair, (0.5,), tested(self.scale)) for pair in self.pairs]

    def note(self, results: Results, paper: str) -> str:
        found = [results(cell) for cell in self.parents()]
        a, b = (Value.of(f[name] for f in found) for name in ("a", "b"))
        alone = f"Models A and B alone: {a.mean:.2f} and {b.mean:.2f} % (paper: {paper})."
        optimiser = f"{'Adam' if self.training.adam else 'SGD'} (learning rate {self.training.rate:g})"
        how = f"{self.training.epochs} epochs with {optimiser} on {self.images} images"
        return f"{alone} Fine-tuning takes {how}; the last epoch is used."

    def table(self, name: str, title: str, rows: Sequence[tuple[str | Value, ...]], note: str) -> Table:
        return Table(name, title, ("", *(f"α = {a:g}" for a in self.alphas)), tuple(rows), note)


def mlps(scale: Scale) -> Tuning:
    """One percent of MNIST, ten epochs of Adam."""
    training = TrainingConfig(0, 1 if scale == "quick" else 10, 64, True, 1e-3, "constant", 0.0, False)
    return Tuning(mnist_pairs(True, scale), 200 if scale == "quick" else 600, training, scale, alphas(scale))


def resnets(scale: Scale) -> Tuning:
    """Five percent of CIFAR-10 that no network has seen; SGD with a cosine schedule.

    The usual scale has three sizes, and five epochs at a six times larger rate instead of thirty epochs.
    """
    epochs, rate = (30, 1e-3) if scale == "full" else (5, 6e-3)
    training = TrainingConfig(0, 1 if scale == "quick" else epochs, 64, False, rate, "cosine", 1e-4, True)
    sizes = (0.0, 0.4, 0.8) if scale == "usual" else alphas(scale)
    return Tuning(split_resnet_pairs(scale), 100 if scale == "quick" else 2500, training, scale, sizes)
