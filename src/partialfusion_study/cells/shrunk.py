"""One network, and the ensemble of two, reduced to a number of parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import partialfusion as pf

from ..data import DataName
from ..methods import MethodConfig
from ..recipes import Pair, Recipe
from ..samples import evaluation_images
from ..training import accuracy
from .fusing import pruned
from .pairs import sized


@dataclass(frozen=True)
class Shrunk:
    """Prune a network within a budget, and evaluate the result on the test images.

    Attributes:
        model: the network.
        config: how it is pruned.
        size: all parameters of the result, relative to the network.
        tested: the number of test images; None for all.
        seed: random seed of the images that serve as data, and of searches.
    """

    model: Recipe
    config: MethodConfig = field(metadata={"stored_as": "way"})
    size: float
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return (self.model,)

    def run(self) -> dict[str, Any]:
        data = self.config.data(self.model.subset.data, self.seed)
        result = pruned(self.model, self.config, data, self.seed, budget=pf.Budget(dense=self.size))
        return _found(result, self.model.subset.data, self.tested)


@dataclass(frozen=True)
class ShrunkEnsemble:
    """Reduce the ensemble of a pair, at equal shares, within a budget; refits may fill its zero blocks.

    Attributes:
        pair: the networks.
        config: how it is reduced.
        size: all parameters of the result, relative to one network.
        tested: the number of test images; None for all.
        seed: random seed of the images that serve as data, and of searches.
    """

    pair: Pair
    config: MethodConfig = field(metadata={"stored_as": "way"})
    size: float
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        result = sized(self.pair, self.config, self.seed, budget=pf.Budget(dense=self.size), zeros="free")
        return _found(result, self.pair.data, self.tested)


def _found(result: pf.Fusion, data: DataName, tested: int | None) -> dict[str, Any]:
    """Accuracy, all parameters and effective ones relative to one network, and the widths: space → before, after."""
    return {
        "accuracy": accuracy(result.model, evaluation_images(data, tested)),
        "ratio": round(result.count.ratio, 6),
        "effective": round(result.count.effective_ratio, 6),
        "widths": {s.name: [s.before, s.after] for s in result.summary().spaces if s.kind == "elastic"},
    }
