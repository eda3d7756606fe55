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
    """Something that limits what may be done with a set of labels; each mark is a set of its own."""

    kind: Literal["permutable", "rigid"]
    reason: str


class Labels:
    """Union-find over labels, always fully compressed: looking up a root is one gather."""

    def __init__(self) -> None:
        self.root = torch.arange(2)
        self.marks: list[tuple[Tensor, Tensor, Mark]] = []

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
        pairs = torch.stack([a[meet], b[meet]]).unique(dim=1)
        nodes, edges = pairs.unique(return_inverse=True)
        size = len(nodes)
        first, second = edges.numpy()
        graph = coo_array((np.ones(len(first), bool), (first, second)), shape=(size, size))
        count, component = connected_components(graph, directed=False)
        least = torch.full((count,), len(self.root)).scatter_reduce(
            0, torch.from_numpy(component).long(), nodes, "amin"
        )
        table = torch.arange(len(self.root))
        table[nodes] = least[torch.from_numpy(component).long()]
        self.root = table[self.root]

    def mark(self, labels: Tensor, mark: Mark) -> None:
        """Put a mark on the channels among the labels, with the number of times each occurs."""
        roots, counts = self.find(compact(labels)).unique(return_counts=True)
        real = roots > FIXED
        if bool(real.any()):
            self.marks.append((roots[real], counts[real], mark))


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
