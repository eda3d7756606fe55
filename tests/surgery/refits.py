"""What tests of refitting share: data, the refit itself, and how far outputs are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partialfusion.core.inputs import Inputs
from partialfusion.fusing.conform import conformed
from partialfusion.fusing.result import Fusion
from partialfusion.surgery.refit import refit_model
from zoo import Exhibit


def data_of(exhibit: Exhibit, batches: int = 8) -> list[tuple[Tensor]]:
    return [(exhibit.inputs(seed + 10),) for seed in range(batches)]


def refitted(fused: Fusion, models: Sequence[nn.Module], data: Any, **options: Any) -> nn.Module:
    first = next(iter(data))
    blueprints = conformed(models, fused.blueprint, Inputs.of(first))
    refit_model(fused.model, fused.layout, models, blueprints, fused.plan, [*map(Inputs.of, data)], **options)
    return fused.model


def outputs(model: nn.Module, data: Sequence[tuple[Tensor]]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(x) for (x,) in data])


def ensemble(models: Sequence[nn.Module], mix: Sequence[float], data: Sequence[tuple[Tensor]]) -> Tensor:
    return torch.stack([w * outputs(m, data) for w, m in zip(mix, models, strict=True)]).sum(0)


def distance(a: Tensor, b: Tensor) -> float:
    """Mean squared distance relative to the spread of b."""
    return float((a - b).square().mean() / b.var())


def distance_in_size(a: Tensor, b: Tensor) -> float:
    """Mean squared distance relative to the mean square of b."""
    return float((a - b).square().mean() / b.square().mean().clamp_min(1e-12))
