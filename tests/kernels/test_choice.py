"""Kernel pairs from choices: clusters, deletions, transport, whatever the masses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partialfusion.kernels import Choice, Reduction, reduce_union


@st.composite
def unions(draw: st.DrawFn) -> tuple[list[int], np.ndarray]:
    """Widths of one to three models, and the masses of all their channels; whole models may weigh nothing."""
    widths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    shares = draw(st.lists(st.integers(0, 3), min_size=len(widths), max_size=len(widths)))
    return widths, np.repeat(np.array(shares, float), widths)


def labels_of(draw: st.DrawFn, n: int) -> np.ndarray:
    raw = draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n))
    return np.unique(raw, return_inverse=True)[1]


def check(reduction: Reduction, widths: list[int], deleted: int = 0) -> None:
    """Both kernels are conditional expectations, targets are ordered by who writes them, and the counts agree."""
    assert sum(p.write_matrix().sum(1) for p in reduction.pairs) == pytest.approx(1.0)
    for pair, width in zip(reduction.pairs, widths, strict=True):
        rows = pair.read_matrix().sum(1)
        assert pair.sources == width
        assert ((rows == 0) | (np.abs(rows - 1) < 1e-9)).all()
    assert reduction.deleted == deleted
    writes = reduction.support()
    assert writes.any(1).all()
    last = len(widths) - 1
    alone = writes.sum(1) == 1
    rank = np.where(alone, np.where(writes.argmax(1) == last, last + 1, writes.argmax(1)), last)
    assert (np.diff(rank) >= 0).all()
    assert reduction.fused == (~alone).sum()
    assert list(reduction.isolated) == [int((alone & writes[:, m]).sum()) for m in range(len(widths))]


@settings(deadline=None, max_examples=150)
@given(unions(), st.data())
def test_clusters(union: tuple[list[int], np.ndarray], data: st.DataObject) -> None:
    widths, masses = union
    labels = data.draw(st.composite(lambda draw: labels_of(draw, len(masses)))())
    reduction = reduce_union(Choice.of_labels(labels, masses), widths)
    check(reduction, widths)
    assert reduction.width == labels.max() + 1
    assert reduction.combined == (np.bincount(labels) > 1).sum()
    write = np.concatenate([p.write_matrix() for p in reduction.pairs], 1)
    for row in write:
        members = np.flatnonzero(row > 0)
        together = labels == labels[members[0]]
        expected = np.where(together, masses, 0) if masses[together].sum() else together.astype(float)
        assert row == pytest.approx(expected / expected.sum())


@settings(deadline=None, max_examples=80)
@given(unions(), st.data())
def test_deletion(union: tuple[list[int], np.ndarray], data: st.DataObject) -> None:
    widths, masses = union
    n = len(masses)
    kept = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    reduction = reduce_union(Choice.of_kept(kept), widths)
    check(reduction, widths, deleted=n - len(kept))
    write = np.concatenate([p.write_matrix() for p in reduction.pairs], 1)
    assert sorted(write.argmax(1)) == list(kept)
    assert set(write.ravel()) <= {0.0, 1.0}


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
def test_transport_keeps_both_marginals(n: int, k: int, seed: int) -> None:
    plan = np.random.default_rng(seed).random((n, k)) + 1e-3
    (pair,) = reduce_union(Choice.of_coupling(plan), [n]).pairs
    assert pair.write_matrix() == pytest.approx((plan / plan.sum(0)).T)
    assert pair.read_matrix() == pytest.approx(plan / plan.sum(1, keepdims=True))
    (mass,) = reduce_union(Choice.of_coupling(plan), [n], "mass").pairs
    assert mass.write_matrix().sum(0) == pytest.approx(1.0)
    assert mass.read_matrix().sum(0) == pytest.approx(1.0)


def test_the_paper_form_sums_what_is_written_and_averages_what_is_read() -> None:
    labels, masses = np.array([0, 1, 0, 1, 2]), np.array([0.3, 0.3, 0.7, 0.7, 0.7])
    a, b = reduce_union(Choice.of_labels(labels, masses), [2, 3], "mass").pairs
    assert a.write_matrix().tolist() == [[1, 0], [0, 1], [0, 0]]
    assert b.write_matrix().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert a.read_matrix() == pytest.approx(np.array([[0.3, 0, 0], [0, 0.3, 0]]))
    assert b.read_matrix() == pytest.approx(np.array([[0.7, 0, 0], [0, 0.7, 0], [0, 0, 1.0]]))
