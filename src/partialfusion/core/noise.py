"""Random inputs like the example inputs, for what is to be measured without data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .inputs import Inputs


def noise(inputs: Inputs, runs: int, seed: int, *, rows: int | None = None) -> Iterator[Inputs]:
    """Standard normal numbers in the place of numbers, and the example's own integers in another order.

    Masks and what is no tensor stay as they are.

    Args:
        inputs: the example inputs.
        runs: how many batches to draw.
        seed: random seed.
        rows: how many rows every tensor is to have instead of its own; masks are repeated.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        shape = tuple(value.shape) if rows is None else (rows, *value.shape[1:])
        if value.is_floating_point():
            return torch.randn(shape, generator=generator).to(value)
        if value.dtype == torch.bool:
            return value[torch.arange(shape[0]) % len(value)]
        place = torch.randint(value.numel(), shape, generator=generator)
        return value.reshape(-1)[place.to(value.device)]

    for _ in range(runs):
        yield inputs.map(drawn)
