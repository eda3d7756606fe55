"""Channel labels: integers that say which channel an activation element belongs to.

Two values are special. FREE belongs to no channel and is the same for all of them (a constant, a scalar). FIXED
belongs to the outside (an element of the network's input): a channel that meets it cannot be moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

FREE, FIXED = 0, 1


@dataclass(frozen=True)
class Mark:
    """Something that tells a set of labels from others; each mark is a set of its own.

    "permutable" and "rigid" limit what may be done with the channels; "set" only says that they are treated as one.
    """

    kind: Literal["set", "permutable", "rigid"]
    reason: str


class Labels:
    """Union-find over labels, always fully compressed: looking up a root is one gather."""

    def __init__(self) -> None:
        self.root = torch.arange(2)
        self.marks: list[tuple[Tensor, Tensor, Mark]] = []
        self.glued: list[Tensor] = []
        self.nests: list[tuple[Tensor, Tensor]] = []
        self.touches: list[tuple[Tensor, Tensor]] = []
        self.version = 0  # counts the changes of roots
        self._parents: tuple[tuple[int, int, int], Tensor] | None = None

    def fresh(self, n: int) -> Tensor:
        """n new labels."""
        start = len(self.root)
        new = torch.arange(start, start + n)
        self.root = torch.cat([self.root, new])
        return new

    def find(self, labels: Tensor) -> Tensor:
        return self.root[labels]

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Make the labels that meet in two tensors of one shape the same; FREE and FIXED meet nothing."""
        a, b = self.find(a).reshape(-1), self.find(b).reshape(-1)
        meet = (a > FIXED) & (b > FIXED) & (a != b)
        if not bool(meet.any()):
            return
        keys = (a[meet] * len(self.root) + b[meet]).unique()
        pairs = torch.stack([keys // len(self.root), keys % len(self.root)])
        nodes, edges = pairs.unique(return_inverse=True)
        size = len(nodes)
        first, second = edges.numpy().astype(np.int32)  # older versions of SciPy take no longer indices
        graph = coo_array((np.ones(len(first), bool), (first, second)), shape=(size, size))
        count, component = connected_components(graph, directed=False)
        least = torch.full((count,), len(self.root)).scatter_reduce(
            0, torch.from_numpy(component).long(), nodes, "amin"
        )
        table = torch.arange(len(self.root))
        table[nodes] = least[torch.from_numpy(component).long()]
        self.root = table[self.root]
        self.version += 1

    def glue(self, labels: Tensor) -> None:
        """Record that each row of (sets × n) labels moves as one unit."""
        rows = labels.reshape(len(labels), -1)
        self.glued.append(torch.stack([rows[:, :1].expand_as(rows).reshape(-1), rows.reshape(-1)]))

    def units(self) -> Tensor:
        """(labels,) the unit of every label: its root, or the least root it is glued to."""
        own = torch.arange(len(self.root))
        if not self.glued:
            return self.root
        together = Labels()
        together.root = own
        together.unite(*self.find(torch.cat(self.glued, 1)))
        return together.root[self.root]

    def glue_blocks(self) -> None:
        """Let blocks that a unit spans move as one, too."""
        while True:
            unit, parent = self.units(), self.parents()
            child = torch.nonzero(parent).flatten()
            pairs = torch.stack([unit[child], unit[parent[child]]], 1).unique(dim=0)
            spanning = pairs[1:, 0] == pairs[:-1, 0]
            if not bool(spanning.any()):
                return
            self.glued.append(torch.stack([pairs[:-1, 1][spanning], pairs[1:, 1][spanning]]))

    def touch(self, labels: Tensor) -> None:
        """Record that one operation handles these channels: those handled by other operations are not like them."""
        found, counts = compact(labels).unique(return_counts=True)
        self.touches.append((found, counts * scramble(len(self.touches))))

    def histories(self, units: Tensor) -> Tensor:
        """(labels,) a number for every unit that identifies which operations handled it, and how often."""
        total = torch.zeros(len(self.root), dtype=torch.long)
        for found, weight in self.touches:
            total.index_add_(0, units[found], weight)
        return total

    def nest(self, rows: Tensor) -> Tensor:
        """Give each row of (blocks × n) labels a parent: its channels may be exchanged with each other, or all together
        with those of another block. Returns the (blocks,) parents."""
        parents = self.fresh(len(rows))
        self.nests.append((rows, parents))
        return parents

    def parents(self) -> Tensor:
        """(labels,) the parent of every root, 0 for none; a channel in two blocks makes these one."""
        state = self.version, len(self.root), len(self.nests)
        if self._parents is None or self._parents[0] != state:
            table = self._find_parents()
            self._parents = (self.version, len(self.root), len(self.nests)), table
        return self._parents[1]

    def _find_parents(self) -> Tensor:
        if not self.nests:
            return torch.zeros(len(self.root), dtype=torch.long)
        child = torch.cat([rows.reshape(-1) for rows, _ in self.nests])
        parent = torch.cat([p[:, None].expand_as(rows).reshape(-1) for rows, p in self.nests])
        while True:
            table = torch.zeros(len(self.root), dtype=torch.long)
            table[self.find(child)] = self.find(parent)
            given = table[self.find(child)]
            if bool((given == self.find(parent)).all()):
                return table
            self.unite(given, parent)

    def mark(self, labels: Tensor, mark: Mark) -> None:
        """Put a mark on the channels among the labels, with the number of times each occurs."""
        roots, counts = self.find(compact(labels)).unique(return_counts=True)
        real = roots > FIXED
        if bool(real.any()):
            self.marks.append((roots[real], counts[real], mark))


def scramble(number: int) -> int:
    """A large odd number for a small one, so that sums of different sets differ (modulo 2⁶⁴)."""
    mixed = ((number + 1) * 0x9E3779B97F4A7C15) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    return ((mixed ^ (mixed >> 32)) | 1) - 2**63


def compact(labels: Tensor) -> Tensor:
    """The same labels with every expanded dimension cut to size one: nothing is computed twice."""
    for dim, stride in enumerate(labels.stride()):
        if stride == 0 and labels.shape[dim] > 1:
            labels = labels.narrow(dim, 0, 1)
    return labels


def varying_dims(labels: Tensor) -> list[int]:
    """Dimensions along which the labels are not constant."""
    small = compact(labels)
    return [d for d in range(small.dim()) if small.shape[d] > 1 and bool((small != small.narrow(d, 0, 1)).any())]
