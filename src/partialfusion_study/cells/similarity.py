"""How far the channels of two networks are from each other and from their own kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partialfusion.core.literals import Site
from partialfusion.features import union_moments

from ..recipes import Pair, Training
from ..trained import blueprint, trained
from ..ways import batches


@dataclass(frozen=True)
class Similarity:
    """Distances of activation vectors in every space, to the nearest channel and on average, per channel.

    The vector of a neuron has one entry per image. That of a convolution's channel has one per image and position; its
    distances are divided by the root of the number of positions.

    Attributes:
        pair: the networks.
        images: training images.
        site: activations "pre" or "post" the activation function.
        seed: of the draw of the images.
    """

    pair: Pair
    images: int
    site: Site
    seed: int = 0

    @property
    def needs(self) -> tuple[Training, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        models, plan = [trained(self.pair.a), trained(self.pair.b)], blueprint(self.pair.b)
        spaces = [s.name for s in plan if s.kind == "elastic"]
        data = [(x,) for x in batches(self.pair.data, self.seed, self.images)]
        moments = union_moments(models, [plan, plan], data, spaces, self.site)
        return {
            "layers": [
                {"name": name, "width": plan[name].width} | self._distances(moments[name][0].squared_distances().cpu())
                for name in spaces
            ]
        }

    def _distances(self, squared: Tensor) -> dict[str, list[float]]:
        """(2n × 2n) mean squared distances of A's and B's channels → the distances of every channel."""
        distance = (self.images * squared).sqrt()
        n = len(distance) // 2
        blocks = {
            "within_a": distance[:n, :n],
            "within_b": distance[n:, n:],
            "a_to_b": distance[:n, n:],
            "b_to_a": distance[n:, :n],
        }
        found = {}
        for name, block in blocks.items():
            own = torch.eye(n, dtype=torch.bool) if name.startswith("within") else torch.zeros(n, n, dtype=torch.bool)
            found[f"nearest_{name}"] = _rounded(block.masked_fill(own, torch.inf).amin(1))
            found[f"mean_{name}"] = _rounded(block.masked_fill(own, 0.0).sum(1) / (~own).sum(1))
        return found


def _rounded(values: Tensor) -> list[float]:
    return [round(v, 4) for v in values.tolist()]
