"""Couplings of spaces whose blocks go together: heads are matched as wholes, channels inside them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from partialfusion.solvers import couple_blocks

HEADS, SIZE = 4, 3


def blocks(heads: int) -> np.ndarray:
    return np.repeat(np.arange(heads), SIZE)


def costs(seed: int, heads: tuple[int, int] = (HEADS, HEADS)) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.random((heads[0] * SIZE, heads[1] * SIZE)) for _ in range(2)]


def brute_force(found: list[np.ndarray], fused: int) -> float:
    """The least cost of fusing so many heads, over all ways."""
    inner = np.zeros((HEADS, HEADS))
    for i in range(HEADS):
        for j in range(HEADS):
            for cost in found:
                part = cost[i * SIZE : (i + 1) * SIZE, j * SIZE : (j + 1) * SIZE]
                inner[i, j] += min(part[np.arange(SIZE), list(p)].sum() for p in permutations(range(SIZE)))
    orders = permutations(range(HEADS))
    return min(sorted_sum([inner[i, j] for i, j in enumerate(order)], fused) for order in orders)


def sorted_sum(values: list[float], count: int) -> float:
    return float(np.sort(values)[:count].sum())


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_heads_are_fused_as_wholes(alpha: float, seed: int) -> None:
    given = costs(seed)
    found = couple_blocks(given, [(blocks(HEADS), blocks(HEADS))] * 2, alpha)
    fused = HEADS - round(alpha * HEADS)
    total = 0.0
    for cost, coupling in zip(given, found, strict=True):
        rows, cols, _ = coupling.fused_part()
        assert len(rows) == fused * SIZE
        assert len({(r // SIZE, c // SIZE) for r, c in zip(rows.tolist(), cols.tolist(), strict=True)}) == fused
        assert sorted(coupling.rows.tolist()) == sorted(coupling.cols.tolist()) == list(range(HEADS * SIZE))
        total += float(cost[rows, cols].sum())
    heads = [{(r // SIZE, c // SIZE, f) for r, c, f in zip(c.rows, c.cols, c.fused, strict=True)} for c in found]
    assert heads[0] == heads[1]
    assert total == pytest.approx(brute_force(given, fused))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_unequally_many_heads(alpha: float) -> None:
    found = couple_blocks(costs(0, (2, 4)), [(blocks(2), blocks(4))] * 2, alpha)
    for coupling in found:
        assert coupling.shape == (2 * SIZE, 4 * SIZE)
        assert coupling.row_mass.sum() == pytest.approx(1.0)
        rows, _ = coupling.fused_fraction()
        by_head = rows.reshape(2, SIZE)
        assert (by_head == by_head[:, :1]).all()
        assert rows.mean() == pytest.approx(1.0 - alpha)
