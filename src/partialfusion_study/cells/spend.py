"""A pair merged to the size of another fusion, by a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..samples import unseen
from ..training import accuracy
from .merge import Merge, fused, merged


@dataclass(frozen=True)
class Spend(Merge):
    """Spend as many parameters as a fusion of given alpha and fixed spaces has, where they save most.

    Attributes as in `Merge`.
    """

    def run(self) -> dict[str, Any]:
        like = merged(self.pair, self.way, self.alpha, self.share, fixed=self.fixed, seed=self.seed)
        mix = 1.0 - self.share, self.share
        result = fused(self.pair, self.way, self.seed, budget=like.count.ratio, mix=mix)
        assert isinstance(result.recipe.alpha, dict)
        return {
            "accuracy": accuracy(result.model, unseen(self.pair.data, self.tested)),
            "ratio": round(result.count.ratio, 6),
            "like": round(like.count.ratio, 6),
            "alphas": {space: round(alpha, 4) for space, alpha in result.recipe.alpha.items()},
        }
