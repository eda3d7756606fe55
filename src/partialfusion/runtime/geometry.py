"""Where the non-zero blocks of a fused weight are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..blueprint import Space
from ..kernels import Plan
from ..kernels.coupling import Bools, Ints


@dataclass(frozen=True, eq=False)
class Group:
    """Output channels that read the same input channels: positions on axis 0 and on axis 1 of a weight."""

    rows: Ints
    cols: Ints

    @property
    def area(self) -> int:
        return len(self.rows) * len(self.cols)


def axis_support(name: str, axis: int, length: int, layout: Mapping[str, Space], plan: Plan) -> Bools:
    """(length × models): the models that reach each position of a parameter's axis.

    Positions that belong to no space are of all models: what enters there is read by everyone.
    """
    table = np.ones((length, plan.models), bool)
    for space_name, space in layout.items():
        for binding in space.bindings:
            if (binding.parameter, binding.axis) == (name, axis):
                table[binding.index] = plan[space_name].support()[:, None, :]
    return table


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
