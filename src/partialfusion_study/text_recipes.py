"""Recipes of trained language models: the architecture, the domains and the hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .data.text import DOMAINS, Domain


@dataclass(frozen=True)
class TextTraining:
    """The hyperparameters of a training run with AdamW: a warm-up over a twentieth of the steps, then a cosine to zero.

    Attributes:
        order: random seed of the passages.
        steps: number of batches.
        batch: number of passages in a batch, drawn at random from the training text.
        rate: the largest learning rate.
        decay: weight decay.
    """

    order: int
    steps: int
    batch: int
    rate: float = 2e-3
    decay: float = 0.1


@dataclass(frozen=True)
class TextRecipe:
    """A language model of bytes and how it is trained; equal recipes give equal networks.

    Attributes:
        width: channels of the residual stream.
        depth: number of blocks.
        heads: attention heads of each block.
        context: bytes in a passage.
        domains: the domains of the training text, from which a passage is drawn with equal chances.
        start: random seed of the initial weights.
        training: the hyperparameters.
        base: the network whose weights training starts from, instead of random ones.
    """

    width: int
    depth: int
    heads: int
    context: int
    domains: tuple[Domain, ...]
    start: int
    training: TextTraining
    base: TextRecipe | None = None

    @property
    def name(self) -> str:
        """A readable name: the width, the domains, "tuned" where there is a base, the seed of the initial weights."""
        tuned = "-tuned" if self.base else ""
        return f"gpt-w{self.width}-{'+'.join(self.domains)}{tuned}-start{self.start}"


@dataclass(frozen=True)
class TextPair:
    """The two language models that are fused."""

    a: TextRecipe
    b: TextRecipe

    @property
    def base(self) -> TextRecipe | None:
        """The network that both were tuned from."""
        return self.a.base if self.a.base == self.b.base else None


def gpt_recipe(domains: tuple[Domain, ...], start: int, *, steps: int, batch: int) -> TextRecipe:
    """Four blocks of width 128 with four heads and passages of 128 bytes, from random weights."""
    return TextRecipe(128, 4, 4, 128, domains, start, TextTraining(start, steps, batch))


def tuned(base: TextRecipe, domain: Domain, *, steps: int, batch: int, rate: float) -> TextRecipe:
    """The base trained further on one domain; the order of the passages is the domain's own."""
    training = TextTraining(10 + DOMAINS.index(domain), steps, batch, rate, base.training.decay)
    return replace(base, domains=(domain,), training=training, base=base)
