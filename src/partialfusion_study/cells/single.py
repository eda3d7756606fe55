"""Cells of one network: trained, pruned, and pruned by several clustering algorithms."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import partialfusion as pf
from partialfusion.core.literals import Keep

from ..methods import MethodConfig
from ..recipes import Recipe
from ..samples import evaluation_images
from ..trained import trained
from ..training import accuracy
from .fusing import pruned


@dataclass(frozen=True)
class Train:
    """Train a network, unless there is a checkpoint of it, and evaluate it on the test images.

    Attributes:
        recipe: the network.
        tested: the number of test images; None for all.
    """

    recipe: Recipe
    tested: int | None = None

    def run(self) -> dict[str, Any]:
        return {"accuracy": accuracy(trained(self.recipe), evaluation_images(self.recipe.subset.data, self.tested))}


@dataclass(frozen=True)
class Compress:
    """Prune a network, in the general sense, and evaluate the result on the test images.

    Attributes:
        model: the network.
        config: how it is pruned.
        keep: the fraction of the channels that is kept.
        tested: the number of test images; None for all.
        seed: random seed of the images that serve as data, and of searches.
    """

    model: Recipe
    config: MethodConfig = field(metadata={"stored_as": "way"})
    keep: float
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return (self.model,)

    def run(self) -> dict[str, Any]:
        result = self.pruned(self.keep)
        return {
            "accuracy": accuracy(result.model, evaluation_images(self.model.subset.data, self.tested)),
            "ratio": round(result.count.effective_ratio, 6),
            "cost": sum(s.cost for s in result.summary().spaces),
        }

    def pruned(self, keep: Keep) -> pf.Fusion:
        """The network with a fraction of all channels, or with one for each space."""
        data = self.config.data(self.model.subset.data, self.seed)
        return pruned(self.model, self.config, data, self.seed, keep=keep)


@dataclass(frozen=True)
class Sliced(Compress):
    """As `Compress`, in one space of the network alone.

    Attributes:
        space: its name.
    """

    space: str = ""

    def run(self) -> dict[str, Any]:
        result = self.pruned({self.space: self.keep, "*": 1.0})
        found = accuracy(result.model, evaluation_images(self.model.subset.data, self.tested))
        return {"accuracy": found, "ratio": round(result.count.ratio, 6)}


@dataclass(frozen=True)
class Clusters(Compress):
    """As `Compress`, with the CPU time of the whole; times depend on the machine."""

    def run(self) -> dict[str, Any]:
        once = replace(self.config, restarts=self.config.restarts and 1)
        Compress(self.model, once, self.keep, 10, self.seed).run()  # loads, traces and compiles before the clock starts
        started = time.process_time()
        found = super().run()
        return found | {"processor_seconds": round(time.process_time() - started, 3)}
