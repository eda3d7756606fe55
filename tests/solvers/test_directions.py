"""Frames that correspond: against SciPy, by what they leave as it is, and on spaces that are rotations of others."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group

from partialfusion.core.arrays import Floats, Ints
from partialfusion.solvers.directions import (
    alike_first,
    directions,
    generalised,
    most_alike,
    procrustes,
    similarity,
    within_head,
)


def covariances(samples: list[Floats]):
    centred = [x - x.mean(0) for x in samples]
    return lambda i, j: centred[i].T @ centred[j] / len(centred[i])


def rotations(count: int, n: int) -> list[Floats]:
    return [ortho_group.rvs(n, random_state=k) for k in range(count)]


def test_procrustes_is_scipys() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(50, 6)), rng.normal(size=(50, 6))
    expected, _ = orthogonal_procrustes(a, b)
    np.testing.assert_allclose(procrustes(a.T @ b), expected, atol=1e-10)


@pytest.mark.parametrize("pairs", [None, np.array([[0, 2], [1, 3]])])
def test_heads_of_several_models_fit_each_other_ever_better(
    pairs: Ints | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=(30, 4))
    cross, history = covariances([common + 2 * rng.normal(size=(30, 4)) for _ in range(4)]), []
    for sweeps in range(6):
        monkeypatch.setattr("partialfusion.solvers.directions.SWEEPS", sweeps)
        found = generalised(cross, 4, 4, pairs)
        history.append(sum((found[i] * (cross(i, j) @ found[j])).sum() for i, j in combinations(range(4), 2)))
    assert (np.diff(history) > -1e-9 * history[0]).all()
    assert history[-1] > 1.001 * history[0]


@pytest.mark.parametrize("pairs", [None, np.array([[0, 2], [1, 3]])])
def test_the_largest_inner_product_is_that_of_the_best_rotation(pairs: Ints | None) -> None:
    towards = np.random.default_rng(0).normal(size=(3, 2, 4, 4))
    best = np.array([[(within_head(block, pairs) * block).sum() for block in row] for row in towards])
    np.testing.assert_allclose(most_alike(towards, pairs), best, rtol=1e-12)


def test_similarity_is_one_for_a_rotation_and_small_for_noise() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4000, 5))
    b = a @ rotations(1, 5)[0]
    noise = rng.normal(size=(4000, 5))
    cross = covariances([a, b, noise])
    assert similarity(cross(0, 1), np.trace(cross(0, 0)), np.trace(cross(1, 1))) == pytest.approx(1)
    assert similarity(cross(0, 2), np.trace(cross(0, 0)), np.trace(cross(2, 2))) < 0.1


@pytest.mark.parametrize("models", [2, 3, 4])
def test_rotated_spaces_are_brought_back(models: int) -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=(300, 7)) * np.arange(1, 8)
    samples = [a @ r for r in rotations(models, 7)]
    found = directions(covariances(samples), [7] * models)
    turned = [x @ r for x, r in zip(samples, found.rotations, strict=True)]
    for x in turned[:-1]:
        np.testing.assert_allclose(x, turned[-1], atol=1e-9)
    for difference in found.differences:
        np.testing.assert_allclose(difference, 0, atol=1e-9)


@pytest.mark.parametrize("widths", [(5, 5), (7, 4), (4, 7), (5, 5, 5), (6, 3, 4)])
def test_frames_are_orthonormal(widths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    common = rng.normal(size=(200, 3))
    samples = [common @ rng.normal(size=(3, n)) + 0.3 * rng.normal(size=(200, n)) for n in widths]
    found = directions(covariances(samples), widths)
    for rotation, n in zip(found.rotations, widths, strict=True):
        np.testing.assert_allclose(rotation.T @ rotation, np.eye(n), atol=1e-10)


def test_two_models_have_the_singular_vectors() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(size=(500, 4))
    samples = [common @ rng.normal(size=(4, 6)) + rng.normal(size=(500, 6)) for _ in range(2)]
    cross = covariances(samples)
    found = directions(cross, [6, 6])
    diagonal = found.rotations[0].T @ cross(0, 1) @ found.rotations[1]
    np.testing.assert_allclose(diagonal, np.diag(np.linalg.svd(cross(0, 1), compute_uv=False)), atol=1e-10)


def test_directions_of_rotated_models_that_differ_least_come_first() -> None:
    """However many are fused, no others, such as singular vectors, differ less."""
    rng = np.random.default_rng(3)
    common = rng.normal(size=(500, 4))
    samples = [common @ rng.normal(size=(4, 6)) + rng.normal(size=(500, 6)) for _ in range(2)]
    cross = covariances(samples)
    known = procrustes(cross(0, 1))
    found = alike_first(cross, known)
    np.testing.assert_allclose(found.rotations[0] @ found.rotations[1].T, known, atol=1e-10)
    ours, singular = (np.sort(f.differences[0]) for f in (found, directions(cross, [6, 6])))
    np.testing.assert_allclose(ours, found.differences[0])
    assert (np.cumsum(ours) <= np.cumsum(singular) + 1e-10).all()
    assert ours[:3].sum() < 0.99 * singular[:3].sum()


def test_the_differences_are_those_of_the_samples() -> None:
    rng = np.random.default_rng(4)
    common = rng.normal(size=(500, 4))
    samples = [common @ rng.normal(size=(4, 6)) + rng.normal(size=(500, 6)) for _ in range(2)]
    found = directions(covariances(samples), [6, 6])
    a, b = ((x - x.mean(0)) @ r for x, r in zip(samples, found.rotations, strict=True))
    size = ((a**2).mean(0) + (b**2).mean(0)).mean()
    np.testing.assert_allclose(found.differences[0], ((a - b) ** 2).mean(0) / size, atol=1e-10)


def test_three_models_fit_better_than_each_by_itself() -> None:
    """All pairs count, not only those with the last model."""
    rng = np.random.default_rng(5)
    common = rng.normal(size=(300, 6))
    samples = [(common + 0.8 * rng.normal(size=common.shape)) @ r for r in rotations(3, 6)]
    cross = covariances(samples)
    pairs = [(0, 1), (0, 2), (1, 2)]
    found = directions(cross, [6] * 3).rotations
    alone = [procrustes(cross(0, 2)), procrustes(cross(1, 2)), np.eye(6)]

    def fit(frames) -> float:
        return sum(float(np.trace(frames[i].T @ cross(i, j) @ frames[j])) for i, j in pairs)

    assert fit(found) >= fit(alone) - 1e-9


def test_one_model_has_its_principal_directions() -> None:
    rng = np.random.default_rng(6)
    cross = covariances([rng.normal(size=(400, 5)) @ rng.normal(size=(5, 5))])
    (rotation,) = directions(cross, [5]).rotations
    values = np.diag(rotation.T @ cross(0, 0) @ rotation)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(cross(0, 0))[::-1], atol=1e-9)


def test_what_the_data_does_not_show_stays_as_it_is() -> None:
    """Few samples: a space and itself correspond channel by channel all the same."""
    x = np.random.default_rng(7).normal(size=(4, 9))
    cross = covariances([x, x])
    np.testing.assert_allclose(procrustes(cross(0, 1)), np.eye(9), atol=1e-9)
    found = directions(cross, [9, 9])
    np.testing.assert_allclose(found.rotations[0], found.rotations[1], atol=1e-9)
