"""Where the non-zero blocks of a fused weight are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.arrays import Bools, Ints


@dataclass(frozen=True, eq=False)
class Group:
    """Output channels that read the same input channels: positions on axis 0 and on axis 1 of a weight."""

    rows: Ints
    cols: Ints

    @property
    def area(self) -> int:
        return len(self.rows) * len(self.cols)


def row_groups(rows: Bools, cols: Bools) -> list[Group]:
    """The blocks of a weight from the models of its rows (out × models) and of its columns (in × models).

    An entry can differ from zero only where its row and its column have a model in common. Rows that read the same
    columns form one group, so every entry is in one block at most and no two products have to be added. Groups are
    in the order of their first row.
    """
    sets, group_of = np.unique(rows, axis=0, return_inverse=True)
    reads = (sets.astype(np.int64) @ cols.T.astype(np.int64)) > 0
    kinds, kind_of = np.unique(reads, axis=0, return_inverse=True)
    of_row = kind_of.reshape(-1)[group_of.reshape(-1)]
    groups = [Group(np.flatnonzero(of_row == k), np.flatnonzero(kind)) for k, kind in enumerate(kinds)]
    return sorted(groups, key=lambda g: int(g.rows[0]))
