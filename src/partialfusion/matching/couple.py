"""The coupling of two sets of channels of which a given share stays isolated."""

from __future__ import annotations

import numpy as np

from ..kernels.coupling import DUST, Coupling, Floats, Ints
from .assignment import assignment
from .partial import partial_assignment
from .transport import coupling, partial_coupling


def fused_count(n: int, alpha: float) -> int:
    """Channels of n that are fused when the share alpha is isolated."""
    return n - round(alpha * n)


def couple(cost: Floats, alpha: float) -> Coupling:
    """The cheapest coupling that leaves the share `alpha` isolated.

    Equally many channels on both sides: whole channels are matched, n − round(alpha·n) of them. Otherwise every
    channel carries 1/n of its side's mass and 1 − alpha of it is coupled, so that channels may be split.

    Args:
        cost: (n × m) cost of fusing two channels.
        alpha: isolated share, 0 … 1.
    """
    n, m = cost.shape
    cost = np.asarray(cost, np.float64)
    if n == m:
        return _couple_channels(cost, fused_count(n, alpha))
    a, b = np.full(n, 1 / n), np.full(m, 1 / m)
    fused = partial_coupling(cost, a, b, 1 - alpha)
    left_a, left_b = np.maximum(a - fused.sum(1), 0), np.maximum(b - fused.sum(0), 0)
    entries = [(fused, True)]
    if left_a.sum() > DUST:
        entries.append((coupling(cost, left_a, left_b * (left_a.sum() / left_b.sum())), False))
    rows, cols, mass, flags = [], [], [], []
    for plan, is_fused in entries:
        r, c = np.nonzero(plan > DUST / max(n, m))
        rows.append(r)
        cols.append(c)
        mass.append(plan[r, c])
        flags.append(np.full(len(r), is_fused))
    return Coupling(
        np.concatenate(rows), np.concatenate(cols), np.concatenate(mass), np.concatenate(flags), a, b
    )


def _couple_channels(cost: Floats, k: int) -> Coupling:
    rows, cols = partial_assignment(cost, k)
    n = len(cost)
    rest_rows, rest_cols = _others(rows, n), _others(cols, n)
    if len(rest_rows):
        r, c = assignment(cost[np.ix_(rest_rows, rest_cols)])
        rest_rows, rest_cols = rest_rows[r], rest_cols[c]
    fused = np.arange(n) < len(rows)
    return Coupling.of_pairs(np.concatenate([rows, rest_rows]), np.concatenate([cols, rest_cols]), fused)


def _others(index: Ints, n: int) -> Ints:
    mask = np.ones(n, bool)
    mask[index] = False
    return np.flatnonzero(mask)
