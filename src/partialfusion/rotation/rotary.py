"""Rotary positions: queries and keys whose channels are turned in pairs, every pair at a speed of its own.

A pair may be turned by any angle, the same in queries and keys: turns in a plane commute with each other. Nothing else
keeps the pairs apart by their speeds, so the channels of a head stay in their order, and a blueprint counts heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np
import torch
from torch import Tensor

from ..blueprint import Blueprint, Space
from ..core.arrays import Ints


@dataclass(frozen=True)
class Pairing:
    """Which channels of a head are turned together.

    Attributes:
        size: channels of a head that are turned at all.
        halves: channel i is turned with channel i + size / 2; otherwise channel 2i with channel 2i + 1.
    """

    size: int
    halves: bool

    @property
    def pairs(self) -> Ints:
        """(size / 2 × 2) channels of a head."""
        index = np.arange(self.size)
        return index.reshape(2, -1).T if self.halves else index.reshape(-1, 2)

    def random(self, heads: int, generator: torch.Generator) -> Tensor:
        """(heads × size × size) turns by random angles."""
        angles = 2 * torch.pi * torch.rand(heads, self.size // 2, generator=generator, dtype=torch.float64)
        found = torch.zeros(heads, self.size, self.size, dtype=torch.float64)
        first, second = torch.from_numpy(self.pairs.T.copy())
        found[:, first, first] = found[:, second, second] = angles.cos()
        found[:, first, second], found[:, second, first] = angles.sin(), -angles.sin()
        return found


def pairings(space: Space) -> list[Pairing]:
    """What may be the pairs in a space of whole heads, the most pairs first."""
    places = gcd(*(b.index.shape[1] for b in space.bindings))
    sizes = [size for size in range(places, 1, -1) if places % size == 0 and size % 2 == 0]
    return [Pairing(size, halves) for size in sizes for halves in ((True, False) if size > 2 else (True,))]


def counts_heads(space: Space) -> bool:
    """Whether the channels of a space are whole heads that layers compute."""
    whole = space.bundle is not None and space.width == space.heads
    return whole and all(b.role == "writes" and b.index.shape[1] > 1 for b in space.bindings)


def opened(space: Space, size: int) -> Space:
    """A space of whole heads channel by channel: so many for each head, each with all its copies."""

    def by_channel(index: Ints) -> Ints:
        return index.reshape(space.width, -1, size).swapaxes(1, 2).reshape(space.width * size, -1)

    return replace(
        space,
        width=space.width * size,
        bindings=tuple(replace(b, index=by_channel(b.index)) for b in space.bindings),
        blocks=np.repeat(np.arange(space.width), size),
        step=space.step * size,
    )


def opened_in(blueprint: Blueprint, sizes: dict[str, int]) -> Blueprint:
    """The blueprint with some spaces of whole heads channel by channel."""
    return replace(blueprint, spaces=tuple(opened(s, sizes[s.name]) if s.name in sizes else s for s in blueprint))
