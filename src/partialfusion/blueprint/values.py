"""What the values of a program are while it runs on labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from .labels import FIXED, compact


@dataclass(frozen=True)
class Activation:
    """A tensor that the network computes.

    Attributes:
        labels: the label of every element, in the tensor's shape.
        sources: names of the weights that computed it.
        nonlinear_after: the non-linear operations since those weights.
        sides: of products of channels with channels, such as those of attention between channels, the labels along the
            last dimension but one and along the last; every other dimension is that of `labels`. The labels themselves
            are then those of the heads. What moves or reduces such a product drops them.
        numbers: of a tensor without channels, where a reshape hides which elements are copies of one: the same number
            for these, in the tensor's shape.
    """

    labels: Tensor
    sources: frozenset[str] = frozenset()
    nonlinear_after: frozenset[str] = frozenset()
    sides: tuple[Tensor, Tensor] | None = None
    numbers: Tensor | None = None

    @property
    def has_channels(self) -> bool:
        """Whether any element belongs to a channel."""
        return bool((compact(self.labels) > FIXED).any())

    def with_labels(self, labels: Tensor) -> Activation:
        return replace(self, labels=labels, sides=None, numbers=None)

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
    """A tensor that does not depend on inputs or parameters.

    Attributes:
        value: the numbers.
        buffers: names of the model's buffers that it was computed from.
    """

    value: Tensor
    buffers: frozenset[str] = frozenset()


Value = Activation | Parameter | Constant
