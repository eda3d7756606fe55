"""Cells of two networks: alone, as an ensemble, and merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from torch import Tensor

import partialfusion as pf
from partialfusion.core.literals import Alpha

from ..data import normalised
from ..methods import MethodConfig
from ..recipes import Pair, Recipe
from ..samples import evaluation_images, sample
from ..trained import blueprint, trained
from ..training import accuracy, logits, percent
from .fusing import fused


@dataclass(frozen=True)
class Parents:
    """Evaluate both networks alone, and the mean of their logits at several shares of B.

    Attributes:
        pair: the networks.
        shares: shares of model B.
        tested: the number of test images; None for all.
    """

    pair: Pair
    shares: tuple[float, ...]
    tested: int | None = None

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        test = evaluation_images(self.pair.data, self.tested)
        a, b = (parent_logits(model, self.tested) for model in (self.pair.a, self.pair.b))
        return {
            "a": percent(a, test.labels),
            "b": percent(b, test.labels),
            "ensemble": [percent((1 - share) * a + share * b, test.labels) for share in self.shares],
        }


@dataclass(frozen=True)
class Merge:
    """Merge a pair and evaluate the result on the test images.

    Attributes:
        pair: the networks.
        config: how they are merged.
        alpha: channels beyond those of one model, 0 to 1.
        share: the share of model B, the paper's interpolation factor.
        fixed: spaces that stay isolated whatever alpha is.
        tested: the number of test images; None for all.
        seed: random seed of the images that serve as data, and of searches.
    """

    pair: Pair
    config: MethodConfig = field(metadata={"stored_as": "way"})
    alpha: float
    share: float
    fixed: tuple[str, ...] = ()
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        result = merged(self.pair, self.config, self.alpha, self.share, fixed=self.fixed, seed=self.seed)
        spaces = [s for s in result.summary().spaces if s.kind == "elastic"]
        return {
            "accuracy": accuracy(result.model, evaluation_images(self.pair.data, self.tested)),
            "parameters": result.count.effective,
            "ratio": round(result.count.effective_ratio, 6),
            "channels": round(sum(s.after for s in spaces) / sum(s.before for s in spaces), 6),
            "sweeps": result.plan.sweeps,
        }


@dataclass(frozen=True)
class Spend(Merge):
    """Merge a pair within a budget: the size of the fusion that `Merge` makes with the same attributes."""

    def run(self) -> dict[str, Any]:
        like = merged(self.pair, self.config, self.alpha, self.share, fixed=self.fixed, seed=self.seed)
        mix = 1.0 - self.share, self.share
        result = sized(self.pair, self.config, self.seed, budget=pf.Budget(params=like.count.effective_ratio), mix=mix)
        assert isinstance(result.recipe.alpha, dict)
        return {
            "accuracy": accuracy(result.model, evaluation_images(self.pair.data, self.tested)),
            "ratio": round(result.count.effective_ratio, 6),
            "like": round(like.count.effective_ratio, 6),
            "alphas": {space: round(alpha, 4) for space, alpha in result.recipe.alpha.items()},
        }


@dataclass(frozen=True)
class Compared(Merge):
    """Merge a pair as `Merge` does, and compare the outputs with the ensemble's.

    Here `fixed` are patterns of space names; what they match stays isolated if it is elastic.
    """

    def run(self) -> dict[str, Any]:
        elastic = [space.name for space in blueprint(self.pair.b) if space.kind == "elastic"]
        apart = tuple(name for name in elastic if any(fnmatchcase(name, pattern) for pattern in self.fixed))
        result = merged(self.pair, self.config, self.alpha, self.share, fixed=apart, seed=self.seed)
        test = evaluation_images(self.pair.data, self.tested)
        found = logits(result.model, test.images)
        a, b = (parent_logits(model, self.tested) for model in (self.pair.a, self.pair.b))
        ensemble = (1 - self.share) * a + self.share * b
        return {
            "accuracy": percent(found, test.labels),
            "ratio": round(result.count.effective_ratio, 6),
            "apart": len(apart),
            "distance": float((found - ensemble).norm() / ensemble.norm()),
        }


@dataclass(frozen=True)
class Mixed:
    """Merge a pair with the shares that score best on labelled training images; evaluate it on the test images.

    Attributes:
        pair: the networks.
        config: how they are merged.
        alpha: channels beyond those of one model, 0 to 1.
        labelled: the number of images on which the shares are chosen.
        tested: the number of test images; None for all.
        seed: random seed of the images.
    """

    pair: Pair
    config: MethodConfig = field(metadata={"stored_as": "way"})
    alpha: float
    labelled: int
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        chosen = sample(self.pair.data, self.seed, self.labelled)
        batches = zip(normalised(chosen.images).split(250), chosen.labels.split(250), strict=True)
        result = sized(self.pair, self.config, self.seed, alpha=self.alpha, mix="auto", evaluate=batches)
        mixing = result.mixing
        assert mixing is not None
        return {
            "accuracy": accuracy(result.model, evaluation_images(self.pair.data, self.tested)),
            "share": round(mixing.mix[1], 6),
            "alike": round(100 * mixing.alike, 2),
            "curve": [[round(p.mix[1], 6), round(100 * p.score, 4)] for p in mixing.points],
        }


@dataclass(frozen=True)
class Counts:
    """Count the non-zero parameters of a merged pair, between hidden layers and in all, relative to one model.

    Attributes:
        pair: the networks.
        config: how they are merged.
        alpha: channels beyond those of one model, 0 to 1.
        share: the share of model B.
        seed: random seed of the images that serve as data, and of searches.
    """

    pair: Pair
    config: MethodConfig = field(metadata={"stored_as": "way"})
    alpha: float
    share: float = 0.5
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        result = merged(self.pair, self.config, self.alpha, self.share, seed=self.seed)
        layers = {name: int((p != 0).sum()) for name, p in result.model.named_parameters() if p.dim() == 2}
        hidden = sorted(layers, key=lambda name: int(name.split(".")[0]))[1:-1]
        width = self.pair.b.width
        return {
            "hidden": [round(layers[name] / width**2, 6) for name in hidden],
            "ratio": round(result.count.effective_ratio, 6),
        }


@lru_cache(maxsize=4)
def parent_logits(model: Recipe, tested: int | None) -> Tensor:
    """The logits of a network on the test images, or on the first few of them."""
    return logits(trained(model), evaluation_images(model.subset.data, tested).images)


def merged(
    pair: Pair, config: MethodConfig, alpha: float, share: float, *, fixed: tuple[str, ...] = (), seed: int = 0
) -> pf.Fusion:
    """A pair fused at one alpha, except the fixed spaces, which stay isolated; `share` is that of model B."""
    sizes: Alpha | None = {**dict.fromkeys(fixed, 1.0), "*": alpha} if fixed else alpha
    return sized(pair, config, seed, alpha=sizes, mix=(1.0 - share, share))


def sized(pair: Pair, config: MethodConfig, seed: int, **options: Any) -> pf.Fusion:
    """A pair fused with the configured images; the size and the mix are among the options, which go to `pf.fuse`."""
    return fused(pair, config, config.data(pair.data, seed), seed, **options)
