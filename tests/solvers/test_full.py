"""The cheapest matchings of all rows against SciPy, from nothing and from the prices of other costs."""

from __future__ import annotations

import numpy as np
import pytest
from costs import FAMILIES, families
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from partialfusion.errors import DataError
from partialfusion.solvers import Prices, assignment, block_assignments


def checked(cost: np.ndarray, prices: Prices | None = None) -> None:
    """A matching of all rows or all columns, as cheap as SciPy's."""
    rows, cols = assignment(cost, prices)
    assert rows.dtype == cols.dtype == np.int64
    assert len(rows) == min(cost.shape) == len(set(cols.tolist()))
    assert (np.diff(rows) > 0).all()
    best = cost[linear_sum_assignment(cost)].sum()
    assert cost[rows, cols].sum() == pytest.approx(best, rel=1e-12, abs=1e-13 * np.abs(cost).max() * len(cost))


@settings(deadline=None, max_examples=200)
@given(families, st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_any_shape_is_as_cheap_as_scipys(family: str, n: int, m: int, seed: int) -> None:
    checked(FAMILIES[family](np.random.default_rng(seed), n, m))


@settings(deadline=None, max_examples=100)
@given(st.lists(families, min_size=2, max_size=4), st.integers(1, 40), st.integers(0, 10**6))
def test_prices_of_any_other_cost_change_nothing(names: list[str], n: int, seed: int) -> None:
    """Not even those of a cost that has nothing to do with it, or of another size."""
    rng, prices = np.random.default_rng(seed), Prices()
    for name in names:
        checked(FAMILIES[name](rng, n, n), prices)
    checked(FAMILIES[names[0]](rng, n + 1, n + 1), prices)
    checked(FAMILIES[names[0]](rng, n, n + 3), prices)
    checked(FAMILIES[names[0]](rng, n, n), prices)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("n", "m"), [(200, 200), (120, 200), (200, 120)])
def test_many_channels(family: str, n: int, m: int) -> None:
    cost = FAMILIES[family](np.random.default_rng(n), n, m)
    prices = Prices()
    for _ in range(2):
        checked(cost, prices)
        cost = cost + 0.01 * np.abs(cost).max() * np.random.default_rng(m).random(cost.shape)


def test_prices_prove_the_matching_optimal() -> None:
    cost, prices = FAMILIES["space"](np.random.default_rng(0), 60, 60), Prices()
    rows, cols = assignment(cost, prices)
    assert prices.values is not None
    left = cost - prices.values
    assert np.abs(left[rows, cols] - left.min(1)).max() <= 1e-12 * cost.max()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_blocks_are_matched_one_by_one(family: str) -> None:
    cost = FAMILIES[family](np.random.default_rng(1), 24, 30)
    rng = np.random.default_rng(2)
    ours, theirs = rng.permutation(24).reshape(4, 6), rng.permutation(30).reshape(5, 6)
    found, total = block_assignments(cost, ours, theirs)
    for i, rows in enumerate(ours):
        for j, cols in enumerate(theirs):
            part = cost[np.ix_(rows, cols)]
            best = part[linear_sum_assignment(part)].sum()
            dust = 1e-13 * np.abs(cost).max() * 6
            assert sorted(found[i, j].tolist()) == list(range(6))
            assert part[np.arange(6), found[i, j]].sum() == pytest.approx(best, rel=1e-12, abs=dust)
            assert total[i, j] == pytest.approx(best, rel=1e-12, abs=dust)


def test_what_has_no_order_is_refused() -> None:
    for value in (np.nan, np.inf):
        cost = np.eye(3)
        cost[1, 2] = value
        with pytest.raises(DataError, match="NaN or infinite"):
            assignment(cost)


def test_huge_and_empty_costs() -> None:
    sign = np.where(np.eye(4) > 0, -1e308, 1e308)
    assert assignment(sign)[1].tolist() == [0, 1, 2, 3]
    assert [len(part) for part in assignment(np.zeros((0, 4)))] == [0, 0]
