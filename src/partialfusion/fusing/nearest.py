"""Of several results of one size, the one whose outputs are nearest to the models'."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ..core.inputs import Inputs, run
from ..core.literals import Mix


def distances(
    results: Sequence[nn.Module], models: Sequence[nn.Module], mix: Mix, batches: Iterable[Inputs]
) -> list[float]:
    """Squared differences of each result's outputs from the mix of the models', relative to the spread of these.

    Results of the same widths that were fitted to the same data have the same freedom, or nearly so, so that they can
    be compared on that data.

    Args:
        results: the networks to compare.
        models: the models.
        mix: their shares.
        batches: unlabelled data.
    """
    lost, spread = [0.0] * len(results), 0.0
    for batch in batches:
        active = [(share, run(model, batch)) for share, model in zip(mix, models, strict=True) if share > 0]
        expected = [_mixed([(share, outputs[k]) for share, outputs in active]) for k in range(len(active[0][1]))]
        spread += sum(float((e - e.mean(0)).square().sum()) for e in expected)
        for number, result in enumerate(results):
            found = run(result, batch)
            lost[number] += sum(float((f.double() - e).square().sum()) for f, e in zip(found, expected, strict=True))
    return [value / spread if spread > 0 and math.isfinite(value) else math.inf for value in lost]


def _mixed(outputs: Sequence[tuple[float, Tensor]]) -> Tensor:
    return torch.stack([share * x.double() for share, x in outputs]).sum(0)
