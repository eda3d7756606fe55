"""What the values of a program are while it runs on labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """A tensor that the network computes.

    Attributes:
        labels: the label of every element, in the tensor's shape.
        sources: names of the weights that computed it.
        nonlinear_after: the non-linear operations since those weights.
    """

    labels: Tensor
    sources: frozenset[str] = frozenset()
    nonlinear_after: frozenset[str] = frozenset()

    def with_labels(self, labels: Tensor) -> Activation:
        return replace(self, labels=labels)

    def with_nonlinearity(self, operation: str) -> Activation:
        return replace(self, nonlinear_after=self.nonlinear_after | {operation})

    bent_by = with_nonlinearity  # another name, for rules outside the library


@dataclass(frozen=True)
class Parameter:
    """A parameter or buffer, possibly with its axes in another order: dimension d is stored axis axes[d]."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on inputs or parameters."""

    value: Tensor


Value = Activation | Parameter | Constant
