"""Solvers against POT, SciPy and brute force."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from partialfusion.errors import OptionError
from partialfusion.solvers import (
    assignment,
    couple,
    coupling,
    couplings,
    fused_count,
    partial_assignment,
    partial_coupling,
)


def clouds(n: int, m: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 6)), rng.normal(size=(m, 6))
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def emd_with_sink(cost: np.ndarray, k: int) -> float:
    """The paper's partial optimal transport: unit masses, a sink on both sides."""
    n, m = cost.shape
    wide = np.zeros((n + 1, m + 1))
    wide[:n, :m] = cost
    wide[n, m] = 10 * cost.max() + 10
    plan = ot.emd(np.append(np.ones(n), m - k), np.append(np.ones(m), n - k), wide, numItermax=1_000_000)
    return float((plan[:n, :m] * cost).sum())


@pytest.mark.parametrize("n", [1, 2, 7, 40, 120])
@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.4, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("ties", [False, True])
def test_partial_assignment_equals_transport_with_a_sink(n: int, fraction: float, ties: bool) -> None:
    cost = clouds(n, n, n)
    if ties:
        cost = np.round(cost / 4)
    k = n - round(fraction * n)
    rows, cols = partial_assignment(cost, k)
    assert len(rows) == k == len(set(rows)) == len(set(cols))
    assert list(rows) == sorted(rows)
    if k:
        assert cost[rows, cols].sum() == pytest.approx(emd_with_sink(cost, k), rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_partial_assignment_is_optimal(n: int, m: int, data: st.DataObject) -> None:
    entries = st.lists(st.integers(-3, 3), min_size=n * m, max_size=n * m)
    cost = np.array(data.draw(entries), float).reshape(n, m)
    k = data.draw(st.integers(0, min(n, m)))
    rows, cols = partial_assignment(cost, k)
    best = min(
        sum(cost[i, j] for i, j in zip(chosen, order, strict=True))
        for chosen in combinations(range(n), k)
        for order in permutations(range(m), k)
    )
    assert len(rows) == k == len(set(rows)) == len(set(cols))
    assert cost[rows, cols].sum() == pytest.approx(best)


def test_full_assignment_is_scipys() -> None:
    cost = clouds(60, 60, 0)
    rows, cols = linear_sum_assignment(cost)
    for found in (assignment(cost), partial_assignment(cost, 60)):
        assert cost[found].sum() == pytest.approx(cost[rows, cols].sum(), rel=1e-12)


def test_impossible_sizes_are_refused() -> None:
    for k in (-1, 4):
        with pytest.raises(OptionError, match="k must be 0 … 3"):
            partial_assignment(np.zeros((3, 5)), k)
    with pytest.raises(OptionError, match="cannot couple mass"):
        partial_coupling(np.zeros((2, 2)), np.ones(2) / 2, np.ones(2) / 2, 1.5)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (8, 5), (5, 8), (30, 17)])
@pytest.mark.parametrize("mass", [0.0, 0.3, 0.75, 1.0])
def test_partial_coupling_marginals_and_value(n: int, m: int, mass: float) -> None:
    rng = np.random.default_rng(n * m)
    a, b = rng.random(n) + 0.1, rng.random(m) + 0.1
    a, b = a / a.sum(), b / b.sum()
    cost = clouds(n, m, 1)
    plan = partial_coupling(cost, a, b, mass)
    assert plan.min() >= 0
    assert plan.sum() == pytest.approx(mass)
    assert (plan.sum(1) <= a + 1e-12).all()
    assert (plan.sum(0) <= b + 1e-12).all()
    if mass == 1.0:
        assert (plan * cost).sum() == pytest.approx(ot.emd2(a, b, cost), rel=1e-9)
        assert (coupling(cost, a, b) * cost).sum() == pytest.approx(ot.emd2(a, b, cost), rel=1e-9)
    elif mass:
        oracle = ot.partial.partial_wasserstein(a, b, cost, m=mass)
        assert (plan * cost).sum() == pytest.approx((oracle * cost).sum(), rel=1e-9)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (9, 7), (7, 9), (1, 3), (3, 1)])
@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("split", [False, True])
def test_couple_covers_every_row(n: int, m: int, alpha: float, split: bool) -> None:
    found = couple(clouds(n, m, 2), alpha, split=split)
    assert np.bincount(found.rows, found.mass, n) == pytest.approx(found.row_mass)
    fused = np.bincount(found.cols[found.fused], found.mass[found.fused], m)
    assert (fused <= found.col_mass + 1e-12).all()
    rows, cols = found.fused_fraction()
    if split and n != m:
        assert found.mass[found.fused].sum() == pytest.approx(1 - alpha)
    else:
        assert set(rows) | set(cols) <= {0.0, 1.0}
        if rows.any():
            assert rows.sum() == n - round(alpha * n)
            assert cols.sum() == m - round(alpha * m)


ALPHAS = [0.5, 0.0, 0.31, 1.0, 0.5, 0.02, 0.9]


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 2), (13, 13), (60, 60), (9, 7), (7, 9), (1, 3)])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_couplings_of_several_fractions_are_those_of_one_by_one(n: int, m: int, ties: bool, split: bool) -> None:
    """Each against a matching of its own, so also where several are equally cheap."""
    cost = clouds(n, m, 3)
    if ties:
        cost = np.round(cost / 6)
    for alphas in (ALPHAS, ALPHAS[2:3], []):
        many = couplings(cost, alphas, split=split)
        assert len(many) == len(alphas)
        for found, alpha in zip(many, alphas, strict=True):
            alone = couple(cost, alpha, split=split)
            for field in ("rows", "cols", "mass", "fused", "row_mass", "col_mass"):
                np.testing.assert_array_equal(getattr(found, field), getattr(alone, field))
            if n == m:
                np.testing.assert_array_equal(
                    np.stack(found.fused_part()[:2]), np.stack(partial_assignment(cost, fused_count(n, alpha)))
                )


@pytest.mark.parametrize("ties", [False, True])
def test_isolated_channels_are_paired_by_cost_or_in_index_order(ties: bool) -> None:
    cost = clouds(40, 40, 4)
    if ties:
        cost = np.round(cost / 6)
    for paired, plain in zip(couplings(cost, ALPHAS), couplings(cost, ALPHAS, rest=False), strict=True):
        np.testing.assert_array_equal(plain.fused, paired.fused)
        for ours, theirs in zip(plain.fused_part(), paired.fused_part(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert sorted(plain.rows) == sorted(plain.cols) == list(range(40))
        free = ~paired.fused
        assert (np.diff(plain.rows[free]) > 0).all()
        assert (np.diff(plain.cols[free]) > 0).all()
        block = cost[np.ix_(plain.rows[free], plain.cols[free])]
        best = block[linear_sum_assignment(block)].sum()
        assert cost[paired.rows[free], paired.cols[free]].sum() == pytest.approx(best, rel=1e-12)
