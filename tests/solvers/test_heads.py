"""Heads of several models: partners in whatever two models one compares, and the sum over all pairs never falls."""

from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
import pytest

from partialfusion.solvers.directions import phases, procrustes
from partialfusion.solvers.heads import pair_heads, rotations_into_last

PLANES = np.array([[0, 2], [1, 3]])


def inner_products(features, size):
    """(n × channels) of each model → the inner products of heads of two, as the solver wants them."""

    def alike(i, j):
        a, b = (features[k].reshape(len(features[k]), -1, size) for k in (i, j))
        return {"v": np.einsum("nhc,ngd->hgcd", a, b)}

    return alike


def total(alike, placed):
    def pair(i, j):
        inner = alike(i, j)["v"][placed[i].order, placed[j].order]
        return (placed[i].rotations["v"] * (inner @ placed[j].rotations["v"])).sum()

    return sum(pair(i, j) for i, j in combinations(range(len(placed)), 2))


@pytest.mark.parametrize("planes", [None, PLANES])
def test_rotated_and_reordered_heads_are_recovered(planes):
    rng = np.random.default_rng(0)
    size, heads = 4, 3
    features = [rng.normal(size=(40, heads * size))]
    for _ in range(3):
        blocks = [rng.normal(size=(size, size)) for _ in range(heads)]
        blocks = [procrustes(b) if planes is None else phases(b, planes) for b in blocks]
        split = features[0].reshape(40, heads, size)[:, rng.permutation(heads)]
        features.append(np.concatenate([split[:, h] @ b for h, b in enumerate(blocks)], 1))
    placed = pair_heads(inner_products(features, size), len(features), {} if planes is None else {"v": planes})
    into = rotations_into_last(placed)
    for m, one in enumerate(into):
        for k, place in enumerate(placed[m].order):
            ours = features[m].reshape(40, heads, size)[:, place]
            theirs = features[-1].reshape(40, heads, size)[:, placed[-1].order[k]]
            np.testing.assert_allclose(ours @ one["v"][place], theirs, atol=1e-10)


def test_all_pairs_of_models_count_and_not_those_with_the_last_alone(monkeypatch):
    """Two models agree with each other; the last one is another and cannot say which of its heads is which."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(200, 6))
    faint = rng.normal(size=(200, 6))
    features = [first + 0.5 * faint, first - 0.5 * faint, rng.normal(size=(200, 6))]
    known = {(i, j): inner_products(features, 2)(i, j) for i, j in product(range(3), repeat=2)}

    def alike(i, j):
        return known[i, j]

    placed = pair_heads(alike, 3, {})
    # The best of all pairings, each with the rotations that alternating Procrustes problems give.
    best = -np.inf
    for orders in product(permutations(range(3)), repeat=2):
        order = [*map(np.array, orders), np.arange(3)]
        turns = [np.stack([np.eye(2)] * 3) for _ in order]
        for _, m in product(range(20), range(3)):
            for k in range(3):
                towards = sum(alike(m, j)["v"][order[m][k], order[j][k]] @ turns[j][k] for j in range(3) if j != m)
                turns[m][k] = procrustes(towards)
        found = [type(placed[0])(o, {"v": t}) for o, t in zip(order, turns, strict=True)]
        best = max(best, total(alike, found))
    np.testing.assert_array_equal(placed[0].order, placed[1].order)
    assert total(alike, placed) > 0.99 * best
    monkeypatch.setattr("partialfusion.solvers.heads.SWEEPS", 0)
    alone = pair_heads(alike, 3, {})  # each with the last
    assert (alone[0].order != alone[1].order).any()
    assert total(alike, alone) < 0.9 * best


@pytest.mark.parametrize("planes", [{}, {"v": PLANES}])
def test_more_sweeps_are_never_worse(planes, monkeypatch):
    rng = np.random.default_rng(2)
    common = rng.normal(size=(30, 16))
    features = [common + 2 * rng.normal(size=(30, 16)) for _ in range(4)]
    alike, history = inner_products(features, 4), []
    for sweeps in range(8):
        monkeypatch.setattr("partialfusion.solvers.heads.SWEEPS", sweeps)
        history.append(total(alike, pair_heads(alike, 4, planes)))
    assert (np.diff(history) >= -1e-9 * abs(history[0])).all()
    assert history[-1] > history[0]
