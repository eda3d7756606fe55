"""The linear assignment problem."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..core.arrays import Floats, Ints


def assignment(cost: Floats) -> tuple[Ints, Ints]:
    """The cheapest one-to-one matching of an (n × n) cost: rows 0…n−1 and their columns."""
    rows, cols = linear_sum_assignment(cost)
    return rows.astype(np.int64), cols.astype(np.int64)
