"""Cheapest matchings of given sizes against brute force, POT and SciPy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import combinations, permutations

import numba
import numpy as np
import pytest
from costs import FAMILIES, distances, families
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from partialfusion.errors import DataError, OptionError
from partialfusion.solvers import partial_assignment, partial_assignments, partial_coupling


def values(cost: np.ndarray, sizes: list[int]) -> np.ndarray:
    """The objective for every size; what is returned is checked to be matchings of these sizes."""
    found = partial_assignments(cost, sizes)
    assert len(found) == len(sizes)
    for (rows, cols), k in zip(found, sizes, strict=True):
        assert rows.dtype == cols.dtype == np.int64
        assert len(rows) == len(cols) == k == len(set(cols.tolist()))
        assert (np.diff(rows) > 0).all()
    return np.array([cost[match].sum() for match in found])


@settings(deadline=None, max_examples=150)
@given(families, st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_every_size_equals_brute_force(family: str, n: int, m: int, seed: int) -> None:
    cost = FAMILIES[family](np.random.default_rng(seed), n, m)
    sizes = list(range(min(n, m) + 1))
    best = [
        min(
            cost[list(rows), list(cols)].sum()
            for rows in combinations(range(n), k)
            for cols in permutations(range(m), k)
        )
        for k in sizes
    ]
    assert values(cost, sizes) == pytest.approx(best, rel=1e-9, abs=1e-12 * np.abs(cost).max())


@settings(deadline=None, max_examples=150)
@given(families, st.integers(1, 50), st.integers(1, 50), st.integers(0, 10**6), st.data())
def test_sizes_in_any_order_equal_transport_with_a_sink(
    family: str, n: int, m: int, seed: int, data: st.DataObject
) -> None:
    cost = FAMILIES[family](np.random.default_rng(seed), n, m)
    sizes = data.draw(st.lists(st.integers(0, min(n, m)), max_size=4))
    plans = [partial_coupling(cost, np.ones(n), np.ones(m), k) for k in sizes]
    best = [(plan * cost).sum() for plan in plans]
    assert values(cost, sizes) == pytest.approx(best, rel=1e-9, abs=1e-12 * np.abs(cost).max() * n)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("n", "m"), [(150, 150), (90, 200), (200, 90)])
def test_a_price_per_pair_proves_every_size_optimal(family: str, n: int, m: int) -> None:
    """The least cost is convex in the size, and its tangents are assignments where pairs above the price stay apart.

    Where a tangent of the objectives found touches the tangent of the least cost, that size is optimal.
    """
    cost = FAMILIES[family](np.random.default_rng(n), n, m)
    sizes = list(range(min(n, m) + 1))
    found = values(cost, sizes)
    steps = np.diff(found)
    dust = 1e-12 * np.abs(cost).max() * n
    assert (np.diff(steps) >= -dust).all()
    for k in range(1, len(sizes), 7):
        reduced = np.minimum(cost - steps[k - 1], 0.0)
        bound = reduced[linear_sum_assignment(reduced)].sum() + k * steps[k - 1]
        assert found[k] == pytest.approx(bound, rel=1e-9, abs=dust)


def test_one_size_is_one_of_many() -> None:
    cost = distances(np.random.default_rng(0), 60, 60, 8)
    every = values(cost, list(range(61)))
    for k in (0, 1, 36, 59, 60):
        assert cost[partial_assignment(cost, k)].sum() == pytest.approx(every[k], rel=1e-12)


@pytest.mark.parametrize("k", [0, 3, 5])
@pytest.mark.parametrize("kind", ["read-only", "float32", "fortran", "strided", "integer"])
def test_any_layout_is_read_and_none_is_written(kind: str, k: int) -> None:
    plain = np.random.default_rng(k).integers(0, 100, (5, 7)).astype(float)
    cost = {
        "read-only": plain.copy(),
        "float32": plain.astype(np.float32),
        "fortran": np.asfortranarray(plain),
        "strided": np.repeat(plain, 2, axis=1)[:, ::2],
        "integer": plain.astype(np.int64),
    }[kind]
    if kind == "read-only":
        cost.setflags(write=False)
    assert cost[partial_assignment(cost, k)].sum() == plain[partial_assignment(plain, k)].sum()
    assert (cost == plain).all()


def test_trivial_costs() -> None:
    assert partial_assignments(np.ones((3, 3)), []) == []
    for shape in ((0, 0), (0, 4), (4, 0)):
        assert values(np.zeros(shape), [0]) == 0
    assert list(values(np.array([[-2.0]]), [1, 0, 1])) == [-2, 0, -2]


def test_what_cannot_be_matched_is_refused() -> None:
    with pytest.raises(OptionError, match=r"cannot match 4 pairs in a cost of shape \(3, 5\): k must be 0 … 3"):
        partial_assignments(np.zeros((3, 5)), [1, 4])
    with pytest.raises(OptionError, match=r"not of shape \(3,\)"):
        partial_assignment(np.zeros(3), 1)
    for value in (np.nan, np.inf, -np.inf):
        cost = np.zeros((3, 5))
        cost[1, 2] = value
        with pytest.raises(DataError, match=r"shape \(3, 5\) holds NaN or infinite"):
            partial_assignment(cost, 2)


def test_huge_costs_are_finite() -> None:
    cost = np.full((4, 4), 1e308)
    assert partial_assignment(cost, 2)[0].shape == (2,)


def test_numba_is_loaded_when_first_needed() -> None:
    code = """
import sys, numpy as np, partialfusion
from partialfusion.solvers import partial_assignments
partial_assignments(np.eye(3), [0])
assert "numba" not in sys.modules
partial_assignments(np.eye(3), [2])
assert "numba" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_that_cannot_be_written_is_compiled_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from partialfusion.solvers._jit import exact

    njit = numba.njit

    def without_a_place(**options: bool) -> Callable[..., object]:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", without_a_place)
    assert exact(lambda x: x + 1)(2) == 3
