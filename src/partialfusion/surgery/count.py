"""Parameter counts: dense, and effective, which leaves out the blocks that are zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from .apply import SurgeryResult
from .support import filled, parameter_supports, supported_entries


@dataclass(frozen=True)
class Count:
    """Parameters of a result.

    Attributes:
        dense: all entries of all parameters: what the module that is returned holds and computes with.
        effective: entries outside the zero blocks: what the block form and files hold.
        single: parameters of the last model, to compare with.
    """

    dense: int
    effective: int
    single: int

    @property
    def ratio(self) -> float:
        """Dense parameters relative to the last model."""
        return self.dense / self.single

    def __str__(self) -> str:
        text = f"parameters: {self.dense:,}, {self.ratio:.2f}× one model ({self.single:,})"
        if self.effective == self.dense:
            return f"{text}; the same as blocks and in files"
        small = f"{self.effective:,} effective, {self.effective_ratio:.2f}×"
        return f"{text}; as blocks (pf.to_blocks) and in files (pf.save) {small}"

    @property
    def effective_ratio(self) -> float:
        """Effective parameters relative to the last model."""
        return self.effective / self.single


def count(result: SurgeryResult, last: nn.Module) -> Count:
    """Counts for a fused model as it is; the last source is what it is compared with.

    The zero blocks of a parameter count as soon as they hold a number, as they do once refitting has filled them.
    """
    parameters = dict(result.model.named_parameters())
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    support = parameter_supports(shapes, result.layout, result.plan)
    support |= {name: (None,) * len(shapes[name]) for name in filled(parameters, support)}
    return Count(
        dense=sum(math.prod(shape) for shape in shapes.values()),
        effective=sum(supported_entries(shape, support[name]) for name, shape in shapes.items()),
        single=sum(p.numel() for p in last.parameters()),
    )
