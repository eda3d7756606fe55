"""Costs of many kinds, and what solvers stumble over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

Rng = np.random.Generator


def distances(rng: Rng, n: int, m: int, dim: int) -> np.ndarray:
    x, y = rng.normal(size=(n, dim)), rng.normal(size=(m, dim))
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def dead_channels(rng: Rng, n: int, m: int) -> np.ndarray:
    """Distances of rectified features, of which a third is nought on either side: equal rows and columns."""
    x, y = (np.maximum(rng.normal(size=(size, 5)), 0) for size in (n, m))
    x[: n // 3], y[: m // 3] = 0, 0
    return ((x[:, None] - y[None]) ** 2).sum(-1)


# What solvers stumble over: ties, equal rows and columns, negative costs, sums of a number for the row and the column,
# products (whose best matching runs against the order of the nearest columns), steep ranges.
FAMILIES: dict[str, Callable[[Rng, int, int], np.ndarray]] = {
    "uniform": lambda rng, n, m: rng.random((n, m)),
    "negative": lambda rng, n, m: rng.normal(size=(n, m)) - 1,
    "line": lambda rng, n, m: distances(rng, n, m, 1),
    "space": lambda rng, n, m: distances(rng, n, m, 16),
    "dead channels": dead_channels,
    "few integers": lambda rng, n, m: rng.integers(-2, 3, (n, m)).astype(float),
    "zero or one": lambda rng, n, m: (rng.random((n, m)) < 0.9).astype(float),
    "constant": lambda rng, n, m: np.full((n, m), float(rng.integers(-5, 6))),
    "equal rows": lambda rng, n, m: rng.random((3, m))[rng.integers(0, 3, n)],
    "equal columns": lambda rng, n, m: rng.random((n, 3))[:, rng.integers(0, 3, m)],
    "sums": lambda rng, n, m: np.add.outer(rng.integers(0, 9, n), rng.integers(0, 9, m)).astype(float),
    "products": lambda rng, n, m: -np.outer(np.arange(n), np.arange(m)).astype(float),
    "steep": lambda rng, n, m: np.exp(3 * rng.normal(size=(n, m))),
    "far from nought": lambda rng, n, m: 1e6 + rng.random((n, m)),
}
families = st.sampled_from(sorted(FAMILIES))
