"""A pair merged with the shares that score best on labelled images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..data import normalised
from ..recipes import Pair, Training
from ..samples import sample, unseen
from ..training import accuracy
from ..ways import Way
from .merge import fused


@dataclass(frozen=True)
class Mixed:
    """Look for the shares on labelled images that are not for testing, and measure the result on the test images.

    Attributes:
        pair: the networks.
        way: how they are merged.
        alpha: channels beyond one model's, 0 to 1.
        labelled: how many images the shares are chosen on.
        tested: only so many test images.
        seed: of the images.
    """

    pair: Pair
    way: Way
    alpha: float
    labelled: int
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Training, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        chosen = sample(self.pair.data, self.seed, self.labelled)
        batches = zip(normalised(chosen.images).split(250), chosen.labels.split(250), strict=True)
        result = fused(self.pair, self.way, self.seed, alpha=self.alpha, mix="auto", evaluate=batches)
        mixing = result.mixing
        assert mixing is not None
        return {
            "accuracy": accuracy(result.model, unseen(self.pair.data, self.tested)),
            "share": round(mixing.mix[1], 6),
            "alike": round(100 * mixing.alike, 2),
            "curve": [[round(p.mix[1], 6), round(100 * p.score, 4)] for p in mixing.points],
        }
