"""Parameter counts: dense, and effective, which leaves out the blocks that are zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from .apply import SurgeryResult
from .support import parameter_supports, supported_entries


@dataclass(frozen=True)
class Count:
    """Parameters of a result.

    Attributes:
        dense: all entries of all parameters.
        effective: entries outside the zero blocks.
        single: parameters of the last model, to compare with.
    """

    dense: int
    effective: int
    single: int

    @property
    def ratio(self) -> float:
        """Effective parameters relative to the last model."""
        return self.effective / self.single


def count(result: SurgeryResult, last: nn.Module) -> Count:
    """Counts for a fused model; the last source is what it is compared with."""
    shapes = {name: tuple(p.shape) for name, p in result.model.named_parameters()}
    support = parameter_supports(shapes, result.layout, result.plan)
    return Count(
        dense=sum(math.prod(shape) for shape in shapes.values()),
        effective=sum(supported_entries(shape, support[name]) for name, shape in shapes.items()),
        single=sum(p.numel() for p in last.parameters()),
    )
