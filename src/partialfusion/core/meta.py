"""Tensors on the meta device that remember their numbers: those that code computes and no file holds."""

from __future__ import annotations

from torch import Tensor

_NUMBERS = "_partialfusion_numbers"


def remembering(tensor: Tensor) -> Tensor:
    """A tensor on the meta device, from which `remembered` finds the numbers of this one; so do copies of it."""
    found = tensor.to("meta")
    setattr(found, _NUMBERS, tensor)
    return found


def remembered(tensor: Tensor) -> Tensor:
    """The numbers of a tensor on the meta device that remembers them; any other tensor itself."""
    found = getattr(tensor, _NUMBERS, None) if tensor.is_meta else None
    return found if isinstance(found, Tensor) else tensor
