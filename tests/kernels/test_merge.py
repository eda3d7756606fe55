"""Kernel pairs from couplings: conventions, splits, shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partialfusion.core.literals import Convention
from partialfusion.kernels import Coupling, merge
from partialfusion.kernels.pair import common_frame
from partialfusion.solvers import couple


def random_coupling(n: int, m: int, alpha: float, seed: int, split: bool) -> Coupling:
    return couple(np.random.default_rng(seed).random((n, m)), alpha, split=split)


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 9),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.floats(0, 1),
    st.integers(0, 99),
    st.booleans(),
    st.data(),
)
def test_both_kernels_are_conditional_expectations(
    m: int, others: list[int], alpha: float, seed: int, split: bool, data: st.DataObject
) -> None:
    shares = data.draw(st.lists(st.integers(0, 4), min_size=len(others) + 1, max_size=len(others) + 1))
    mix = np.array(shares if sum(shares) else [1] * len(shares)) / (sum(shares) or len(shares))
    reduction = merge([random_coupling(n, m, alpha, seed, split) for n in others], mix)
    for pair in reduction.pairs:
        assert pair.read_matrix().sum(1) == pytest.approx(1.0)
    assert sum(p.write_matrix().sum(1) for p in reduction.pairs) == pytest.approx(1.0)
    assert reduction.width == reduction.fused + sum(reduction.isolated)
    assert reduction.support().any(1).all()


def test_conventions_agree_at_equal_widths() -> None:
    found = random_coupling(8, 8, 0.4, 0, split=False)
    for a, b in zip(merge([found], (0.3, 0.7)).pairs, merge([found], (0.3, 0.7), "mass").pairs, strict=True):
        assert a.write_matrix() == pytest.approx(b.write_matrix())
        assert a.read_matrix() == pytest.approx(b.read_matrix())


def test_a_channel_matched_in_part_is_split_as_in_the_appendix() -> None:
    """Masses 1/2, 1/2 against 1/3 × 3, of which 0.6 is coupled: every number written out."""
    fused = np.array([[1 / 3, 0.1, 0.0], [0.0, 0.0, 0.16666666666666666]])
    rest = np.array([[0.06666666666666667, 0.0, 0.0], [0.0, 0.23333333333333334, 0.1]])
    rest[0] = [0.0, 0.06666666666666667, 0.0]
    rest[1] = [0.0, 0.16666666666666666, 0.16666666666666666]
    rows, cols, mass, flag = [], [], [], []
    for plan, is_fused in ((fused, True), (rest, False)):
        r, c = np.nonzero(plan)
        rows += list(r)
        cols += list(c)
        mass += list(plan[r, c])
        flag += [is_fused] * len(r)
    a, b = np.full(2, 1 / 2), np.full(3, 1 / 3)
    found = Coupling(np.array(rows), np.array(cols), np.array(mass), np.array(flag), a, b)
    kappa_a, kappa_b = fused.sum(1), fused.sum(0)
    left_a, left_b = 1 - kappa_a / a, 1 - kappa_b / b

    ours, theirs = merge([found], (0.25, 0.75), "mass").pairs
    # Targets: the isolated rests of both channels of A, three fused channels, the rests of channels 1 and 2 of B.
    write_a = np.zeros((7, 2))
    write_a[[0, 1], [0, 1]] = left_a
    write_a[2:5] = 0.25 * (fused / a[:, None]).T
    assert ours.write_matrix() == pytest.approx(write_a)
    read_a = np.zeros((2, 7))
    read_a[[0, 1], [0, 1]] = 1
    read_a[:, 2:5] = fused / kappa_b
    assert ours.read_matrix() == pytest.approx(read_a)
    write_b = np.zeros((7, 3))
    write_b[[2, 3, 4], [0, 1, 2]] = 0.75 * kappa_b / b
    write_b[[5, 6], [1, 2]] = left_b[1:]
    assert theirs.write_matrix() == pytest.approx(write_b)
    read_b = np.zeros((3, 7))
    read_b[[0, 1, 2], [2, 3, 4]] = 1
    read_b[[1, 2], [5, 6]] = 1
    assert theirs.read_matrix() == pytest.approx(read_b)


@pytest.mark.parametrize(("n", "m"), [(4, 4), (5, 3), (3, 5)])
def test_mass_kernels_are_the_papers_equation(n: int, m: int) -> None:
    """K^{A→B} = πᵀ/μ_A and K^{B→A} = π/μ_B of a full coupling."""
    found = random_coupling(n, m, 0.0, 1, split=True)
    pi = np.zeros((n, m))
    np.add.at(pi, (found.rows, found.cols), found.mass)
    ours, _ = common_frame(found, "mass", complete=True)
    assert ours.write_matrix() == pytest.approx(pi.T * n)
    assert ours.read_matrix() == pytest.approx(pi * m)


@pytest.mark.parametrize("convention", ["value", "mass"])
def test_the_reference_frame_has_the_channels_that_nothing_is_matched_with(convention: Convention) -> None:
    few = Coupling(np.arange(2), np.array([3, 1]), np.full(2, 0.5), np.ones(2, bool), np.full(2, 0.5), np.full(4, 0.25))
    reduction = merge([few], (0.5, 0.5), convention)
    first, last = reduction.frames
    assert first.write_matrix() == pytest.approx(np.eye(4)[:, [3, 1]])
    assert last.write_matrix() == pytest.approx(np.eye(4))
    assert common_frame(few, convention)[0].targets == 2


def test_contributors_without_a_share_count_equally() -> None:
    """Channels that only models of share zero write stay defined."""
    first, second = Coupling.identity(3), Coupling.identity(3).isolated()
    reduction = merge([first, second], (0.0, 1.0, 0.0))
    assert reduction.pairs[0].write_matrix()[3:6] == pytest.approx(np.eye(3) / 2)
    assert reduction.pairs[2].write_matrix()[3:6] == pytest.approx(np.eye(3) / 2)
