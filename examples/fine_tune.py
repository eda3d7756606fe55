"""Fuse two specialists on handwritten digits, then fine-tune the result on a few labelled images.

The zero blocks of the fused network are frozen, so its size is the same before and after.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import partialfusion as pf
from partialfusion.demo import Sample, Specialists, accuracy, logits, specialists

LABELLED = 60  # images, about 5 % of what the specialists were trained on
EPOCHS = 20


@dataclass(frozen=True)
class Measured:
    """Accuracy on the test images, and parameters: those that are not zero, and all."""

    accuracy: float
    nonzero: int
    dense: int


def measure(model: nn.Module, test: Sample) -> Measured:
    parameters = list(model.parameters())
    nonzero = sum(int(p.detach().count_nonzero()) for p in parameters)
    return Measured(accuracy(logits(model, test), test), nonzero, sum(p.numel() for p in parameters))


def few_images(pair: Specialists, generator: torch.Generator) -> Sample:
    """A random subset of both specialists' training images, all digits among them."""
    images = torch.cat([pair.data_a.images, pair.data_b.images])
    digits = torch.cat([pair.data_a.digits, pair.data_b.digits])
    return Sample(images, digits)[torch.randperm(len(digits), generator=generator)[:LABELLED]]


def fine_tune(model: nn.Module, sample: Sample, generator: torch.Generator) -> None:
    """An ordinary training loop; nothing in it knows of the fusion."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    model.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(sample), generator=generator).split(16):
            optimiser.zero_grad()
            F.cross_entropy(model(sample.images[batch]), sample.digits[batch]).backward()
            optimiser.step()
    model.eval()


def main(seed: int = 0) -> tuple[Measured, Measured]:
    generator = torch.Generator().manual_seed(seed)
    pair = specialists(seed)
    result = pf.fuse([pair.a, pair.b], pair.test.images[:2], alpha=0.4)
    sample = few_images(pair, generator)

    before = measure(result.model, pair.test)
    with pf.freeze_zeros(result):
        fine_tune(result.model, sample, generator)
    after = measure(result.model, pair.test)

    for name, model in (("specialist A", pair.a), ("specialist B", pair.b)):
        print(f"{name:30}  {accuracy(logits(model, pair.test), pair.test):6.1%}")
    for name, found in (("fused at alpha 0.4", before), (f"fine-tuned on {len(sample)} images", after)):
        print(f"{name:30}  {found.accuracy:6.1%}   {found.nonzero:,} of {found.dense:,} parameters are not zero")
    return before, after


if __name__ == "__main__":
    main()
