"""Kernel pairs: how the channels of one model enter the target channels, and how they are read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.arrays import Floats, Ints
from ..core.literals import Convention
from .coupling import Coupling


@dataclass(frozen=True)
class Pattern:
    """A weighted relation of source channels to target channels: one side of a kernel pair."""

    target: Ints
    source: Ints
    weight: Floats


@dataclass(frozen=True)
class KernelPair:
    """The matrices `write` (targets × sources) and `read` (sources × targets) of one space for one model.

    Both have the same support, so they share the index arrays: entry e says that source channel `source[e]` enters
    target channel `target[e]` with weight `write[e]` and reads it with weight `read[e]`.
    """

    target: Ints
    source: Ints
    write: Floats
    read: Floats
    targets: int
    sources: int

    @classmethod
    def identity(cls, n: int, write: float = 1.0) -> KernelPair:
        index = np.arange(n)
        return cls(index, index, np.full(n, write), np.ones(n), n, n)

    def writing(self) -> Pattern:
        return Pattern(self.target, self.source, self.write)

    def reading(self) -> Pattern:
        return Pattern(self.target, self.source, self.read)

    def write_matrix(self) -> Floats:
        """(targets × sources), dense: for inspection and tests."""
        dense = np.zeros((self.targets, self.sources))
        np.add.at(dense, (self.target, self.source), self.write)
        return dense

    def read_matrix(self) -> Floats:
        """(sources × targets), dense: for inspection and tests."""
        dense = np.zeros((self.sources, self.targets))
        np.add.at(dense, (self.source, self.target), self.read)
        return dense


def common_frame(
    coupling: Coupling, convention: Convention, *, complete: bool = False
) -> tuple[KernelPair, KernelPair]:
    """Kernel pairs of the row model and of the column model of a coupling into one frame, unmixed.

    The coordinates are the channels of the column model that take part in the coupling. With `complete`, the entries
    that stay isolated count as well, and the coordinates are all channels of the column model: the reference frame
    (the paper's K^{A→B} and K^{B→A} of a full coupling).
    """
    if complete:
        rows, cols, mass = coupling.rows, coupling.cols, coupling.mass
    else:
        rows, cols, mass = coupling.fused_part()
    n, m = coupling.shape
    row_total = np.bincount(rows, mass, n)[rows]
    col_total = np.bincount(cols, mass, m)[cols]
    members, target = np.unique(cols, return_inverse=True)
    per_target, per_source = mass / col_total, mass / row_total
    write, read = (per_target, per_source) if convention == "value" else (per_source, per_target)
    count = len(members)
    ones = np.ones(count)
    ours = KernelPair(target, rows, write, read, count, n)
    theirs = KernelPair(np.arange(count), members, ones, ones, count, m)
    return ours, theirs


def reference_frames(couplings: Sequence[Coupling], convention: Convention, width: int) -> tuple[KernelPair, ...]:
    """One kernel pair per model into the reference frame: the last model's channels, of which there are `width`."""
    others = [common_frame(c, convention, complete=True)[0] for c in couplings]
    return (*others, KernelPair.identity(width))
