"""One network made smaller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import partialfusion as pf

from ..recipes import Training
from ..samples import unseen
from ..trained import blueprint, example, trained
from ..training import accuracy
from ..ways import Way
from .merge import uninterrupted


@dataclass(frozen=True)
class Compress:
    """Prune a network, in the general sense, and measure the result on the test images.

    Attributes:
        model: the network.
        way: how it is pruned.
        keep: the share of the channels that is left.
        tested: only so many test images.
        seed: of the images that serve as data, and of searches.
    """

    model: Training
    way: Way
    keep: float
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Training, ...]:
        return (self.model,)

    def run(self) -> dict[str, Any]:
        data = self.model.share.data
        result = pf.prune(
            trained(self.model),
            example(self.model),
            keep=self.keep,
            blueprint=blueprint(self.model),
            seed=self.seed,
            **self.way.options(data, self.seed),
        )
        uninterrupted(result, self.way)
        return {
            "accuracy": accuracy(result.model, unseen(data, self.tested)),
            "ratio": round(result.count.ratio, 6),
            "cost": sum(s.cost for s in result.summary().spaces),
        }
