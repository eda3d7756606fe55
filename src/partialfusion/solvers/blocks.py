"""Matching channels that stand in blocks: whole blocks with each other, and channels within matched blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.arrays import Floats, Ints
from ..kernels.coupling import Coupling
from .assignment import assignment


def couple_blocks(costs: Sequence[Floats], blocks: Sequence[Ints]) -> list[Coupling]:
    """The cheapest matching of several spaces whose blocks go together, such as queries and values of heads.

    The cost of matching two blocks is that of the best matching of their channels, summed over the spaces; one
    assignment of the blocks then decides all of them.

    Args:
        costs: per space, (n × n) cost of fusing two channels.
        blocks: per space, (n,) the block of each channel, 0 … h − 1, each of equally many.
    """
    heads = int(max(b.max() for b in blocks)) + 1
    members = [[np.flatnonzero(b == h) for h in range(heads)] for b in blocks]
    total = np.zeros((heads, heads))
    inner: dict[tuple[int, int, int], Ints] = {}
    for s, (cost, groups) in enumerate(zip(costs, members, strict=True)):
        for i, rows in enumerate(groups):
            for j, cols in enumerate(groups):
                part = cost[np.ix_(rows, cols)]
                r, c = assignment(part)
                inner[s, i, j] = c
                total[i, j] += part[r, c].sum()
    order = assignment(total)[1]
    found = []
    for s, groups in enumerate(members):
        rows = np.concatenate(groups)
        cols = np.concatenate([groups[order[i]][inner[s, i, int(order[i])]] for i in range(heads)])
        found.append(Coupling.of_pairs(rows, cols, np.ones(len(rows), bool)))
    return found
