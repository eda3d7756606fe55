"""Parameters of a merged layer, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..recipes import Pair, Training
from ..ways import Way
from .merge import merged


@dataclass(frozen=True)
class Counts:
    """Non-zero parameters between hidden layers of a merged pair, and of the whole, relative to one model."""

    pair: Pair
    way: Way
    alpha: float
    share: float = 0.5
    seed: int = 0

    @property
    def needs(self) -> tuple[Training, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        result = merged(self.pair, self.way, self.alpha, self.share, seed=self.seed)
        layers = {name: int((p != 0).sum()) for name, p in result.model.named_parameters() if p.dim() == 2}
        hidden = sorted(layers, key=lambda name: int(name.split(".")[0]))[1:-1]
        width = self.pair.b.width
        return {
            "hidden": [round(layers[name] / width**2, 6) for name in hidden],
            "ratio": round(result.count.ratio, 6),
        }
