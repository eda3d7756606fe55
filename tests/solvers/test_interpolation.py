"""Column subset selection against naive greedy search, QR with pivoting, exhaustive search and least squares."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.linalg import qr

from partialfusion.core.arrays import Floats
from partialfusion.errors import OptionError
from partialfusion.solvers import nearest_kept, read_map, select, select_blocks, swap


def channels(n: int, seed: int, *, samples: int = 60, rank: int | None = None) -> Floats:
    """(samples × n) correlated activations."""
    rng = np.random.default_rng(seed)
    rank = n if rank is None else rank
    return rng.normal(size=(samples, rank)) @ rng.normal(size=(rank, n))


def residual(x: Floats, kept: list[int], weights: Floats) -> float:
    """The weighted residual by NumPy's least squares on the samples themselves."""
    left = x - x[:, kept] @ np.linalg.lstsq(x[:, kept], x, rcond=None)[0] if kept else x
    return float(((weights * left) ** 2).sum())


def naive(x: Floats, k: int, weights: Floats) -> list[int]:
    kept: list[int] = []
    for _ in range(k):
        others = [j for j in range(x.shape[1]) if j not in kept]
        kept.append(min(others, key=lambda j: residual(x, [*kept, j], weights)))
    return kept


@pytest.mark.parametrize("seed", range(6))
def test_selection_is_the_greedy_one_and_its_residuals_are_those_of_least_squares(seed: int) -> None:
    n = 5 + seed
    x, weights = channels(n, seed), np.random.default_rng(seed).uniform(0.2, 2.0, n)
    found = select(x.T @ x, n, weights)
    assert found.kept[: n - 1].tolist() == naive(x, n - 1, weights)
    expected = [residual(x, found.kept[:k].tolist(), weights) for k in range(n + 1)]
    assert found.residuals == pytest.approx(np.array(expected), abs=1e-8 * expected[0])
    assert sorted(found.kept) == list(range(n))
    assert found.residual == 0.0


def test_every_smaller_size_is_a_prefix_also_over_many_blocks() -> None:
    x = channels(130, 0, samples=200)
    gram = x.T @ x
    whole = select(gram, 130)
    for k in (1, 47, 48, 49, 97, 129):
        part = select(gram, k)
        assert part.kept.tolist() == whole.first(k).kept.tolist()
        assert part.residual == pytest.approx(residual(x, part.kept.tolist(), np.ones(130)), rel=1e-6)


def test_reduction_of_the_total_beats_the_pivots_of_qr() -> None:
    """Both agree on uncorrelated channels; in the first step, the greedy reduction is never the smaller one."""
    scales = np.array([3.0, 1.0, 2.0, 5.0])
    gram = np.diag(scales**2)
    pivots = qr(np.diag(scales), mode="r", pivoting=True)[1]
    assert select(gram, 4).kept.tolist() == pivots.tolist()
    for seed in range(20):
        x = channels(8, seed)
        first = int(qr(x, mode="r", pivoting=True)[1][0])
        assert select(x.T @ x, 1).residual <= residual(x, [first], np.ones(8)) * (1 + 1e-9)


def test_swaps_find_the_best_selections_of_small_cases() -> None:
    missed = 0
    for seed in range(12):
        n = 6 + seed % 4
        x, weights = channels(n, 100 + seed), np.random.default_rng(seed).uniform(0.2, 2.0, n)
        gram = x.T @ x
        for k in range(1, n):
            start = select(gram, k, weights)
            found = swap(gram, start, weights)
            assert found.residual <= start.residual
            assert found.residual == pytest.approx(residual(x, found.kept.tolist(), weights), rel=1e-6)
            best = min(residual(x, list(c), weights) for c in combinations(range(n), k))
            assert found.residual >= best * (1 - 1e-9)
            missed += found.residual > best * (1 + 1e-6)
    assert missed <= 2


def test_swaps_repair_a_poor_start_and_stop_when_their_work_is_done() -> None:
    x = channels(20, 3, rank=6) + 0.05 * channels(20, 4)
    gram = x.T @ x
    start = select(gram, 6)
    poor = type(start)(np.arange(6), np.append(start.residuals[:-1], residual(x, list(range(6)), np.ones(20))))
    assert swap(gram, poor).residual < 0.8 * poor.residual
    assert swap(gram, poor, work=0).kept.tolist() == poor.kept.tolist()


def test_swaps_leave_selections_alone_that_explain_everything() -> None:
    """With fewer samples than channels, nothing is left to gain, and nothing may be divided by it."""
    with np.errstate(divide="raise", invalid="raise"):
        for seed in range(300):
            rng = np.random.default_rng(seed)
            x = np.maximum(rng.normal(size=(rng.integers(1, 4), rng.integers(2, 10))), 0.0)
            gram, k = x.T @ x, int(rng.integers(1, x.shape[1]))
            found = select(gram, k, tolerance=1e-5)
            assert swap(gram, found, tolerance=1e-5).residual <= found.residual + 1e-9


def test_duplicates_come_last_and_rank_deficient_matrices_are_spent() -> None:
    x = channels(6, 0)
    both = np.concatenate([x, x], 1)
    found = select(both.T @ both, 12)
    assert sorted(found.kept[:6] % 6) == list(range(6))
    assert found.residuals[6] == pytest.approx(0.0, abs=1e-9 * found.residuals[0])
    flat = channels(9, 1, samples=4)  # four samples: rank four
    twice = np.concatenate([flat, flat], 1)
    found = select(twice.T @ twice, 9)
    assert sorted(found.kept % 9) == list(range(9))  # one of every pair, also where nothing is left to explain


def test_zero_channels_and_zero_weights_wait_for_the_others() -> None:
    x = channels(5, 2)
    x[:, 1] = 0.0
    assert select(x.T @ x, 5).kept[-1] == 1
    assert select(x.T @ x, 4, [1, 1, 1, 0, 1]).kept.tolist()[-1] == 1
    assert select(np.zeros((3, 3)), 2).kept.tolist() == [0, 1]
    assert read_map(np.zeros((3, 3)), np.array([0, 1])).tolist() == [[1, 0], [0, 1], [0, 0]]


def test_read_map_is_least_squares_and_exact_for_kept_channels_and_duplicates() -> None:
    x = channels(8, 5)
    x = np.concatenate([x, -2.0 * x[:, :1]], 1)
    gram, kept = x.T @ x, np.array([6, 0, 3])
    expected = np.linalg.lstsq(x[:, kept], x, rcond=None)[0].T
    assert read_map(gram, kept, ridge=1e-12) == pytest.approx(expected, abs=1e-6)
    for ridge in (1e-3, 10.0):
        found = read_map(gram, kept, ridge=ridge)
        assert (found[kept] == np.eye(3)).all()
        assert found[8] == pytest.approx(np.array([0.0, -2.0, 0.0]), abs=1e-12)
    assert nearest_kept(gram, kept)[[6, 0, 3, 8]].tolist() == [0, 1, 2, 1]


def test_blocks_are_chosen_as_wholes() -> None:
    x = channels(12, 7)
    blocks = np.repeat(np.arange(4), 3)
    weights = np.ones(12)
    found = select_blocks(x.T @ x, blocks, 4)
    kept: list[int] = []
    for step in range(3):
        others = [b for b in range(4) if b not in kept]
        losses = {b: residual(x, np.flatnonzero(np.isin(blocks, [*kept, b])).tolist(), weights) for b in others}
        kept.append(min(losses, key=lambda b: losses[b]))
        assert found.residuals[step + 1] == pytest.approx(losses[kept[-1]], rel=1e-6)
    assert found.kept[:3].tolist() == kept
    assert found.residual == 0.0


@pytest.mark.parametrize("k", [0, 4, 1.5])
def test_sizes_that_make_no_sense_are_refused(k: float) -> None:
    with pytest.raises(OptionError, match="cannot keep"):
        select(np.eye(3), k)  # type: ignore[arg-type]
