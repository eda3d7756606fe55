"""The compiled part of interpolation: greedy column subset selection on a Gram matrix."""

from __future__ import annotations

import numpy as np

from ..core.arrays import Floats, Ints
from ._jit import fast

BLOCK = 48  # channels that are chosen between two updates of the residual matrix
ROWS = 256  # rows of it that are updated at a time


@fast
def greedy(gram: Floats, weights: Floats, floor: Floats, k: int) -> tuple[Ints, Floats]:
    """Up to k channels, each the one that lowers Σ_i weights_i · residual_i most, and the sum after each.

    The residual matrix R is that of the channels after regression on those chosen. Choosing j lowers the sum by
    P_j / R_jj with P_j = Σ_i weights_i R_ij². P follows every choice by one product R · v; R itself is only brought up
    to date once in a block, by one matrix product, so that a step reads half of the matrix and writes none of it.

    Args:
        gram: (n × n) second moments; it is overwritten.
        weights: (n,) squared weights of the channels.
        floor: (n,) a channel whose residual is not above this is never chosen.
        k: the largest number of channels.
    """
    n = len(gram)
    order, energy = np.empty(k, np.int64), np.empty(k)
    index = np.arange(n)  # channels that are left
    w, low, m, found = weights.copy(), floor.copy(), n, 0
    factor = np.zeros((n, BLOCK))
    residual, gain = np.empty(n), np.empty(n)
    r, v, u = np.empty(n), np.empty(n), np.empty(n)
    while found < k and m > 0:
        _refresh(gram, w, residual, gain, m)
        used = 0
        while used < BLOCK and found < k:
            best, at = -1.0, -1
            for j in range(m):
                if residual[j] > low[j] and gain[j] / residual[j] > best:
                    best, at = gain[j] / residual[j], j
            if at < 0:
                return order[:found], energy[:found]
            for i in range(m):
                total = gram[at, i]
                for c in range(used):
                    total -= factor[i, c] * factor[at, c]
                r[i] = total
            pivot = r[at]
            if not pivot > low[at]:  # rounding: it is spent after all
                residual[at] = 0.0
                continue
            scale = 0.0
            for i in range(m):
                v[i] = w[i] * r[i]
                scale += v[i] * r[i]
            _times(gram, v, u, m)
            for c in range(used):
                inner = 0.0
                for i in range(m):
                    inner += factor[i, c] * v[i]
                for i in range(m):
                    u[i] -= factor[i, c] * inner
            root = np.sqrt(pivot)
            left = 0.0
            for i in range(m):
                part = r[i] / pivot
                gain[i] += part * (part * scale - 2.0 * u[i])
                residual[i] -= part * r[i]
                factor[i, used] = r[i] / root
                left += w[i] * max(residual[i], 0.0)
            residual[at] = 0.0
            low[at] = np.inf
            order[found], energy[found] = index[at], left
            found, used = found + 1, used + 1
        m = _compact(gram, factor, used, index, w, low, m)
    return order[:found], energy[:found]


@fast
def _refresh(gram: Floats, w: Floats, residual: Floats, gain: Floats, m: int) -> None:
    """Residuals and P of the channels that are left, from the matrix itself."""
    for j in range(m):
        total = 0.0
        for i in range(m):
            total += w[i] * gram[j, i] * gram[j, i]
        gain[j], residual[j] = total, gram[j, j]


@fast
def _times(gram: Floats, v: Floats, u: Floats, m: int) -> None:
    """u = gram · v, from one half of the matrix."""
    u[:m] = 0.0
    for j in range(m):
        total, factor = gram[j, j] * v[j], v[j]
        for i in range(j):
            total += gram[j, i] * v[i]
            u[i] += gram[j, i] * factor
        u[j] += total


@fast
def _compact(gram: Floats, factor: Floats, used: int, index: Ints, w: Floats, low: Floats, m: int) -> int:
    """Bring the matrix up to date and drop the channels that were chosen; how many are left."""
    columns = np.ascontiguousarray(factor[:m, :used].T)
    keep = np.flatnonzero(low[:m] < np.inf)
    for start in range(0, m, ROWS):
        end = min(start + ROWS, m)
        gram[start:end, :m] -= np.dot(np.ascontiguousarray(factor[start:end, :used]), columns)
    for a in range(len(keep)):
        old = keep[a]
        for b in range(len(keep)):
            gram[a, b] = gram[old, keep[b]]
        index[a], w[a], low[a] = index[old], w[old], low[old]
    return len(keep)
