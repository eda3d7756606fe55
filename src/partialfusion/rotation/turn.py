"""Turning the channels of a space: new channels are orthonormal combinations of the old ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, Space
from ..core.arrays import Ints
from ..core.modules import named_tensors
from .rotary import opened


@dataclass(frozen=True, eq=False)
class Rotations:
    """How models were rotated before they were fused.

    Attributes:
        turns: per model, space → R, orthogonal: (width × width), or (heads × channels × channels) for a rotation within
            every head, also where the space counts heads. Spaces that a model keeps as they are have none.
        uncentred: the norms of rotated streams do not subtract the mean any more, which is zero.
        left: streams and spaces of heads that may not be rotated.
        alone: why models were aligned in one pass, space by space, where that was not asked for; not in files.
    """

    turns: tuple[Mapping[str, Tensor], ...]
    uncentred: bool
    left: tuple[str, ...] = ()
    alone: str = ""

    @property
    def spaces(self) -> tuple[str, ...]:
        """The spaces that were rotated in some model, streams before those of heads."""
        axes = {space: rotation.dim() for turns in self.turns for space, rotation in turns.items()}
        return tuple(sorted(axes, key=axes.__getitem__))


def turn(model: nn.Module, blueprint: Blueprint, rotations: Mapping[str, Tensor]) -> None:
    """Rotate spaces of a model, in place.

    What writes channel i becomes a part of every new channel j, with weight R[i, j], and what reads it likewise; as R
    is orthogonal, what is read stays what it was.

    Args:
        model: the model.
        blueprint: its blueprint; the scales of norms across the spaces, and other factors, must be one, see
            `Stream.fold`.
        rotations: space → R, see `Rotations`.
    """
    tensors = named_tensors(model)
    with torch.no_grad():
        for name, rotation in rotations.items():
            space = _channels(blueprint[name], rotation)
            done = set()
            for binding in space.bindings:
                place = binding.parameter, binding.axis, binding.index.tobytes()
                if binding.role == "scales" or place in done:
                    continue
                done.add(place)
                tensor = tensors[binding.parameter]
                rows = tensor.movedim(binding.axis, 0)
                for slot in range(binding.index.shape[1]):
                    for channels, inner in _parts(space, rotation):
                        index = torch.from_numpy(binding.index[channels, slot]).to(tensor.device)
                        old = rows[index].to(torch.promote_types(tensor.dtype, torch.float64))
                        rows[index] = torch.einsum("ij,i...->j...", inner.to(old), old).to(tensor.dtype)


def _channels(space: Space, rotation: Tensor) -> Space:
    """The space with the channels that a rotation combines: those of the heads where it counts whole heads."""
    size = rotation.shape[-1]
    return opened(space, size) if rotation.dim() == 3 and size * space.heads != space.width else space


def head_channels(space: Space) -> list[Ints]:
    """The channels of each head of a space."""
    return [np.flatnonzero(space.blocks == h) for h in range(space.heads)]


def _parts(space: Space, rotation: Tensor) -> list[tuple[Ints, Tensor]]:
    """The channels that are combined with each other, and how."""
    if rotation.dim() == 2:
        return [(np.arange(space.width), rotation)]
    return list(zip(head_channels(space), rotation, strict=True))
