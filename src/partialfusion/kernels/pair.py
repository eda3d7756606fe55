"""Kernel pairs: how the channels of one model enter the target channels, and how they are read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.arrays import Floats, Ints
from ..core.literals import Convention
from ..errors import OptionError
from .coupling import Coupling


@dataclass(frozen=True)
class Pattern:
    """A weighted relation of source channels to target channels: one side of a kernel pair."""

    target: Ints
    source: Ints
    weight: Floats


@dataclass(frozen=True)
class Shift:
    """The parameter that can take a constant in what a weight computes: a bias, or the mean of the norm behind it.

    Attributes:
        parameter: its name.
        sign: 1 where it is added, −1 where it is subtracted.
    """

    parameter: str
    sign: float = 1.0


@dataclass(frozen=True, eq=False)
class ReadMap:
    """A dense read kernel: every source channel as a linear combination of all target channels, and a constant.

    Attributes:
        matrix: (sources × targets).
        offset: (sources × slots) the constant at every place of a channel; None where there is none.
        shift: the parameter that takes what the weight makes of the constant.
    """

    matrix: Floats
    offset: Floats | None = None
    shift: Shift | None = None


@dataclass(frozen=True, eq=False)
class Interpolation:
    """How the channels of one model are read where some were not kept.

    Attributes:
        nearest: (sources,) the target channel that stands for each; a kept channel stands for itself.
        maps: weight that reads the space → its read kernel; None for one that is not known, as in a plan from a file.
            All that is not in here reads the nearest channels.
        sizes: (sources,) the mean square of each, and `kept` (targets,) that of the target channels, on one scale; None
            where they are not known.
    """

    nearest: Ints
    maps: Mapping[str, ReadMap | None]
    sizes: Floats | None = None
    kept: Floats | None = None


@dataclass(frozen=True)
class KernelPair:
    """The matrices `write` (targets × sources) and `read` (sources × targets) of one space for one model.

    Both have the same support, so they share the index arrays: entry e says that source channel `source[e]` enters
    target channel `target[e]` with weight `write[e]` and reads it with weight `read[e]`. With an interpolation, this
    says what is written, and the interpolation says what is read.
    """

    target: Ints
    source: Ints
    write: Floats
    read: Floats
    targets: int
    sources: int
    interpolation: Interpolation | None = None

    @classmethod
    def identity(cls, n: int, write: float = 1.0) -> KernelPair:
        index = np.arange(n)
        return cls(index, index, np.full(n, write), np.ones(n), n, n)

    def writing(self) -> Pattern:
        return Pattern(self.target, self.source, self.write)

    def reading(self, weight: str | None = None) -> Pattern | ReadMap:
        """What a weight reads; without its name, what is read where no dense kernel can be."""
        if self.interpolation is None:
            return Pattern(self.target, self.source, self.read)
        if weight is not None and weight in self.interpolation.maps:
            found = self.interpolation.maps[weight]
            if found is None:
                raise OptionError(
                    f"the plan does not hold what {weight} reads: files leave out the dense kernels of interpolation; "
                    "use the model in the file, or fuse again"
                )
            return found
        return Pattern(self.interpolation.nearest, np.arange(self.sources), np.ones(self.sources))

    def counted(self) -> Floats:
        """(targets,) how many source channels read each target channel, where every one reads a weighted average."""
        read = self.reading()
        assert isinstance(read, Pattern)
        return np.bincount(read.target, read.weight, self.targets).astype(np.float64)

    def squares(self) -> Floats:
        """(targets,) how much the square of each target channel counts in the sum of the squares of what is read.

        As often as it is read, or for channels that hardly correlate by the squares of the coefficients with which it
        is: whichever comes nearer to the known sum, to which both are scaled.
        """
        found = self.interpolation
        counted = self.counted()
        if found is None or found.sizes is None or found.kept is None:
            return counted
        maps = [m.matrix for m in found.maps.values() if m is not None]
        ways = [counted, *([np.mean([(m**2).sum(0) for m in maps], axis=0)] if maps else [])]
        totals = [float(way @ found.kept) for way in ways]
        total = float(found.sizes.sum())
        if not (total > 0 and min(totals) > 0):
            return counted
        nearer = min(range(len(ways)), key=lambda k: abs(np.log(totals[k] / total)))
        return np.asarray(ways[nearer] * (total / totals[nearer]), np.float64)

    def write_matrix(self) -> Floats:
        """(targets × sources), dense: for inspection and tests."""
        dense = np.zeros((self.targets, self.sources))
        np.add.at(dense, (self.target, self.source), self.write)
        return dense

    def read_matrix(self, weight: str | None = None) -> Floats:
        """(sources × targets), dense, as one weight reads it: for inspection and tests."""
        read = self.reading(weight)
        if isinstance(read, ReadMap):
            return read.matrix
        dense = np.zeros((self.sources, self.targets))
        np.add.at(dense, (read.source, read.target), read.weight)
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
    members, target = (np.arange(m), cols) if complete else np.unique(cols, return_inverse=True)
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
