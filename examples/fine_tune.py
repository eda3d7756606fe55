"""Fuse two specialists on handwritten digits, then fine-tune the result on a few labelled images.

The zero blocks of the fused network are frozen, so its size is the same before and after.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import partialfusion as pf

LABELLED = 60  # images, about 5 % of what the specialists were trained on
EPOCHS = 20


@dataclass(frozen=True)
class Measured:
    """Accuracy on the test images, and two parameter counts: non-zero and all."""

    accuracy: float
    nonzero: int
    dense: int


def load() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Images (n × 64), their digits (n,), and the indices of each split."""
    raw = load_digits()
    images, digits = torch.tensor(raw.data, dtype=torch.float32) / 16, torch.tensor(raw.target)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    return images, digits, {"test": order[:540], "train": order[540:]}


def network() -> nn.Module:
    """(n × 64) → (n × 10)."""
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))


def train(model: nn.Module, images: Tensor, digits: Tensor, *, epochs: int, batch: int = 16) -> None:
    """An ordinary training loop; it trains the specialists and, unchanged, fine-tunes the fused network."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(digits)).split(batch):
            optimiser.zero_grad()
            F.cross_entropy(model(images[chosen]), digits[chosen]).backward()
            optimiser.step()
    model.eval()


def main(seed: int = 0) -> tuple[Measured, Measured]:
    torch.manual_seed(seed)
    images, digits, split = load()
    x, y = images[split["train"]], digits[split["train"]]
    for_a = (y == 4) | (torch.rand(len(y)) < 0.1)  # A sees every 4 and a tenth of the rest, B what is left
    models = {"specialist A": network(), "specialist B": network()}
    for model, seen in zip(models.values(), (for_a, ~for_a), strict=True):
        train(model, x[seen], y[seen], epochs=EPOCHS)

    def measure(model: nn.Module) -> Measured:
        with torch.no_grad():
            correct = (model(images[split["test"]]).argmax(1) == digits[split["test"]]).float().mean()
        parameters = list(model.parameters())
        nonzero = sum(int(p.detach().count_nonzero()) for p in parameters)
        return Measured(float(correct), nonzero, sum(p.numel() for p in parameters))

    result = pf.fuse(list(models.values()), x[:2], alpha=0.4)
    before = measure(result.model)
    with pf.freeze_zeros(result):
        train(result.model, x[:LABELLED], y[:LABELLED], epochs=EPOCHS)
    after = measure(result.model)

    for name, model in models.items():
        print(f"{name:30}  {measure(model).accuracy:6.1%}")
    for name, found in (("fused at alpha 0.4", before), (f"fine-tuned on {LABELLED} images", after)):
        print(f"{name:30}  {found.accuracy:6.1%}   {found.nonzero:,} of {found.dense:,} parameters are not zero")
    return before, after


if __name__ == "__main__":
    main()
