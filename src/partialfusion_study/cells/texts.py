"""Cells of language models: alone, as an ensemble, fused, and merged by arithmetic on their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import partialfusion as pf

from ..arithmetic import added, task_arithmetic, ties
from ..data.text import DOMAINS, load_text
from ..methods import MethodConfig
from ..text_recipes import TextPair, TextRecipe
from ..text_training import bits_per_byte, held_out, passages
from ..trained import trained
from .fusing import fused

Rule = Literal["task arithmetic", "ties"]


@dataclass(frozen=True)
class TrainText:
    """Train a language model, unless there is a checkpoint of it, and score it on held-out text.

    Attributes:
        recipe: the network.
        tested: the number of bytes of each domain that are scored.
    """

    recipe: TextRecipe
    tested: int

    def run(self) -> dict[str, Any]:
        return score([trained(self.recipe)], self.recipe.context, self.tested)


@dataclass(frozen=True)
class TextParents:
    """Score both networks, their base where there is one, and the ensemble, which is the mean of the logits.

    Attributes:
        pair: the networks.
        tested: the number of bytes of each domain that are scored.
    """

    pair: TextPair
    tested: int

    @property
    def needs(self) -> tuple[TextRecipe, ...]:
        return _needs(self.pair)

    def run(self) -> dict[str, Any]:
        a, b = trained(self.pair.a), trained(self.pair.b)
        groups = {"a": [a], "b": [b], "ensemble": [a, b]}
        if self.pair.base is not None:
            groups["base"] = [trained(self.pair.base)]
        return {name: score(models, self.pair.a.context, self.tested) for name, models in groups.items()}


@dataclass(frozen=True)
class TextMerge:
    """Fuse a pair with equal shares and score the result.

    Attributes:
        pair: the networks.
        config: how they are fused.
        alpha: channels beyond those of one model, 0 to 1.
        tested: the number of bytes of each domain that are scored.
        seed: random seed of the passages that serve as data, and of searches.
    """

    pair: TextPair
    config: MethodConfig
    alpha: float
    tested: int
    seed: int = 0

    @property
    def needs(self) -> tuple[TextRecipe, ...]:
        return _needs(self.pair)

    def run(self) -> dict[str, Any]:
        result = self.fused()
        return score([result.model], self.pair.a.context, self.tested) | {
            "ratio": round(result.count.effective_ratio, 6),
            "dense": round(result.count.ratio, 6),
        }

    def fused(self) -> pf.Fusion:
        images = self.config.images
        data = unlabelled(self.pair.a.context, images, self.seed) if images else None
        return fused(self.pair, self.config, data, self.seed, alpha=self.alpha)


@dataclass(frozen=True)
class TextArithmetic:
    """Merge a pair that was tuned from one base by arithmetic on the weights, and score the result.

    Attributes:
        pair: the networks.
        rule: the task vector that is added to the base.
        factors: its multiples, of which the best on training text is taken.
        chosen_on: the number of bytes of the training text of each domain on which the factor is chosen.
        tested: the number of bytes of each domain that are scored.
    """

    pair: TextPair
    rule: Rule
    factors: tuple[float, ...]
    chosen_on: int
    tested: int

    @property
    def needs(self) -> tuple[TextRecipe, ...]:
        return _needs(self.pair)

    def run(self) -> dict[str, Any]:
        assert self.pair.base is not None
        base, context = trained(self.pair.base), self.pair.a.context
        merge = task_arithmetic if self.rule == "task arithmetic" else ties
        vector = merge(base.state_dict(), [trained(m).state_dict() for m in (self.pair.a, self.pair.b)])
        curve = []
        for factor in self.factors:
            model = added(base, vector, factor)
            bits = [bits_per_byte([model], x) for x in _training(context, self.chosen_on // context, seed=0)]
            curve.append(sum(bits) / len(bits))
        factor = self.factors[curve.index(min(curve))]
        found = score([added(base, vector, factor)], context, self.tested)
        return found | {"factor": factor, "curve": [round(bits, 6) for bits in curve]}


def score(models: Sequence[nn.Module], context: int, tested: int) -> dict[str, float]:
    """Domain → bits per byte of the mean of the models' logits on held-out text."""
    return {domain: round(bits_per_byte(models, held_out(domain, context, tested)), 6) for domain in DOMAINS}


def unlabelled(context: int, count: int, seed: int) -> list[Tensor]:
    """Passages of the training text, the same number of each domain, in mixed batches (n × context)."""
    drawn = torch.stack(_training(context, count // len(DOMAINS), seed), dim=1).flatten(0, 1)
    return list(drawn[:, :-1].split(50))


def _training(context: int, count: int, seed: int) -> list[Tensor]:
    """Passages of the training text of every domain, with the byte after them."""
    generator = torch.Generator().manual_seed(seed)
    return [passages(load_text(domain).train, context, count, generator) for domain in DOMAINS]


def _needs(pair: TextPair) -> tuple[TextRecipe, ...]:
    """The base first: the others start from it."""
    return (*([pair.base] if pair.base else []), pair.a, pair.b)
