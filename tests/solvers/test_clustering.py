"""Clustering against SciPy, scikit-learn, exhaustive search and plain formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from clusterings import SOLVERS, blobs, centred, check, compared, covariance, inertia
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.cluster.hierarchy import cut_tree, linkage
from sklearn.cluster import KMeans

from partialfusion.solvers import (
    Clustering,
    cluster,
    exchange,
    lloyd,
    squared_distances,
    stochastic_ward,
    ward,
    zip_pairs,
)

each_solver = pytest.mark.parametrize("name", SOLVERS)
small = settings(deadline=None, max_examples=60)


def partitions(n: int, k: int) -> Iterator[np.ndarray]:
    """Every way to put n channels into exactly k clusters, labels in order of first appearance."""

    def grow(labels: list[int]) -> Iterator[np.ndarray]:
        used = max(labels, default=-1) + 1
        if len(labels) == n:
            if used == k:
                yield np.array(labels)
            return
        if used + n - len(labels) >= k:
            for c in range(min(used + 1, k)):
                yield from grow([*labels, c])

    yield from grow([])


def nearest(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(n,) the nearest centre of each row."""
    return ((x[:, None] - centres) ** 2).sum(-1).argmin(1)


def optimum(x: np.ndarray, k: int, masses: np.ndarray | None = None) -> float:
    return min(inertia(x, labels, masses) for labels in partitions(len(x), k))


# Whole numbers make ties and duplicates; a few values make several of both in every example.
points = st.integers(1, 9).flatmap(
    lambda n: arrays(float, st.tuples(st.just(n), st.integers(1, 3)), elements=st.integers(-2, 2).map(float))
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int, np.ndarray]:
    x = draw(points)
    n = len(x)
    m = draw(arrays(float, n, elements=st.sampled_from([0.0, 0.25, 1.0, 3.0])).filter(lambda m: m.max() > 0))
    return x, draw(st.integers(1, n)), m


@each_solver
@small
@given(problems())
def test_result_is_a_partition_with_its_inertia(name: str, problem: tuple[np.ndarray, int, np.ndarray]) -> None:
    x, k, m = problem
    check(SOLVERS[name](x, k, m), compared(name, x), k, m)
    check(SOLVERS[name](x, k), compared(name, x), k)


@each_solver
@pytest.mark.parametrize("n", [1, 2, 3, 30])
def test_one_cluster_and_one_each(name: str, n: int) -> None:
    x = blobs(n)
    assert (SOLVERS[name](x, n).labels == np.arange(n)).all()
    assert SOLVERS[name](x, n).inertia == 0.0
    assert (SOLVERS[name](x, 1).labels == 0).all()
    seen = compared(name, x)
    assert SOLVERS[name](x, 1).inertia == pytest.approx(((seen - seen.mean(0)) ** 2).sum())


@each_solver
def test_equal_points_make_k_clusters_of_no_inertia(name: str) -> None:
    x = np.full((20, 4), 0.1)
    found = SOLVERS[name](x, 7)
    check(found, x, 7)
    assert found.inertia == 0.0


@each_solver
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layout_and_precision_of_the_input_do_not_matter(name: str, dtype: type) -> None:
    x = blobs(40, d=6).astype(dtype)
    wide = np.zeros((6, 80), dtype)
    wide[:, ::2] = x.T
    found = SOLVERS[name](wide.T[::2], 25)
    assert (found.labels == SOLVERS[name](x.astype(np.float64), 25).labels).all()
    assert (wide[:, ::2] == x.T).all()


@pytest.mark.parametrize("name", ["ward", "stochastic_ward", "cluster"])
def test_duplicates_are_merged_first(name: str) -> None:
    """Far from the origin, where the Gram matrix alone would lose the distances."""
    x = 1e6 + blobs(30, d=5)
    x = np.concatenate([x, x[[3, 3, 17]]])
    found = SOLVERS[name](x, 30)
    assert found.inertia == 0.0
    assert found.labels[3] == found.labels[30] == found.labels[31]
    assert found.labels[17] == found.labels[32]


@each_solver
def test_scale_does_not_matter(name: str) -> None:
    x, m = blobs(40), np.random.default_rng(1).random(40) + 0.1
    found = SOLVERS[name](x, 20, m)
    for scale in (1e-60, 1e60):
        other = SOLVERS[name](x * scale, 20, m * scale)
        assert (other.labels == found.labels).all()
        assert other.inertia == pytest.approx(found.inertia * scale**3)


@pytest.mark.parametrize("n", [2, 10, 57, 300])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8])
def test_ward_is_scipys(n: int, fraction: float) -> None:
    x, k = blobs(n, n), max(1, round(fraction * n))
    theirs = cut_tree(linkage(x, "ward"), k)[:, 0]
    found = ward(squared_distances(x), k)
    assert found.inertia == pytest.approx(inertia(x, theirs), rel=1e-9)
    assert len(set(zip(found.labels, theirs, strict=True))) == k


def test_a_mass_of_three_is_three_channels() -> None:
    rng = np.random.default_rng(0)
    x, m = blobs(40), rng.integers(1, 4, 40)
    squared, copies = squared_distances(x), np.repeat(np.arange(40), m)
    for k in (10, 25, 35):
        theirs = cut_tree(linkage(x[copies], "ward"), k)[:, 0]
        assert ward(squared, k, m).inertia == pytest.approx(inertia(x[copies], theirs), rel=1e-9)
        start = x[:k]
        theirs = KMeans(k, init=start, n_init=1, tol=0).fit(x, sample_weight=m)
        assert lloyd(squared, k, m, start=nearest(x, start)).inertia == pytest.approx(theirs.inertia_, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("k", [2, 6, 15])
def test_lloyd_is_scikit_learns(seed: int, k: int) -> None:
    x = blobs(120, seed)
    centres = x[np.random.default_rng(seed).choice(120, k, replace=False)]
    theirs = KMeans(k, init=centres, n_init=1, algorithm="lloyd", tol=0).fit(x)
    found = lloyd(squared_distances(x), k, start=nearest(x, centres))
    assert found.inertia == pytest.approx(theirs.inertia_, rel=1e-9)
    assert len(set(zip(found.labels, theirs.labels_, strict=True))) == k


def test_lloyd_fills_empty_clusters() -> None:
    x = blobs(50)
    far, squared = np.full((3, x.shape[1]), 1e3), squared_distances(x)
    check(lloyd(squared, 5, start=nearest(x, np.concatenate([x[:2], far]))), x, 5)
    check(lloyd(squared, 5, start=np.zeros(50, int)), x, 5)


def test_lloyd_starts_are_spread() -> None:
    """Twelve distant blobs: drawn as in k-means++, nearly every start hits all of them."""
    rng = np.random.default_rng(0)
    x = 100 * rng.normal(size=(12, 3)).repeat(10, 0) + rng.normal(size=(120, 3))
    right = inertia(x, np.arange(12).repeat(10))
    assert lloyd(squared_distances(x), 12).inertia == pytest.approx(right)


@small
@given(problems(), st.data())
def test_exchange_is_never_worse_and_ends_where_nothing_gains(
    problem: tuple[np.ndarray, int, np.ndarray], data: st.DataObject
) -> None:
    x, _, m = problem
    labels = data.draw(arrays(int, len(x), elements=st.integers(-3, 5)))
    k = len(set(labels))
    found = exchange(squared_distances(x), labels, m)
    check(found, x, k, m)
    assert found.inertia <= inertia(x, labels, m) + 1e-12
    check_that_nothing_gains(found, x, m)


def check_that_nothing_gains(found: Clustering, x: np.ndarray, m: np.ndarray) -> None:
    """No single move and no swap lowers the inertia."""
    k, slack = len(set(found.labels)), 1e-7 * inertia(x, np.zeros(len(x)), m)
    for i in range(len(x)):
        for j in range(len(x)):
            moved, swapped = found.labels.copy(), found.labels.copy()
            moved[i] = moved[j]
            swapped[[i, j]] = swapped[[j, i]]
            for other in (moved, swapped):
                if len(set(other)) == k:
                    assert inertia(x, other, m) >= found.inertia - slack


@pytest.mark.parametrize("k", [3, 10, 20])
def test_exchange_and_cluster_end_where_nothing_gains(k: int) -> None:
    rng = np.random.default_rng(k)
    x, m = rng.normal(size=(30, 4)), rng.random(30) + 0.05
    squared = squared_distances(x)
    for found in (exchange(squared, rng.permutation(np.arange(30) % k), m), cluster(squared, k, m)):
        check(found, x, k, m)
        check_that_nothing_gains(found, x, m)


@pytest.mark.parametrize("seed", range(12))
def test_cluster_finds_the_optimum_of_small_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, m, k = blobs(8, seed, d=3, centres=4), rng.random(8) + 0.1, int(rng.integers(2, 7))
    assert cluster(squared_distances(x), k, m).inertia == pytest.approx(optimum(x, k, m), rel=1e-9)


@pytest.mark.parametrize("k", [30, 60, 90])
def test_methods_in_order_of_strength(k: int) -> None:
    totals = np.zeros(4)
    for seed in range(4):
        squared = squared_distances(blobs(120, seed, d=10, centres=80))
        best, many, one = cluster(squared, k), stochastic_ward(squared, k, restarts=200), ward(squared, k)
        refined = exchange(squared, one.labels)
        assert best.inertia <= many.inertia * (1 + 1e-12)
        assert exchange(squared, best.labels).inertia == pytest.approx(best.inertia, rel=1e-12)
        totals += [best.inertia, many.inertia, refined.inertia, one.inertia]
    assert totals[0] < totals[1] < totals[3]
    assert totals[2] < totals[3]


@pytest.mark.parametrize("k", [2, 3, 5])
def test_cluster_is_as_good_as_lloyd_where_clusters_are_few(k: int) -> None:
    for seed in range(4):
        squared = squared_distances(blobs(100, seed, centres=15))
        assert cluster(squared, k).inertia <= lloyd(squared, k, restarts=100).inertia * (1 + 1e-12)


def reference_restart(x: np.ndarray, k: int, draw: Callable[[np.ndarray], int]) -> float:
    """One restart of the published method, from its description, without Lloyd's iteration; `draw` sees the costs."""
    means, masses = list(x), [1.0] * len(x)
    spent = 0.0
    while len(means) > k:
        cost = np.full((len(means), len(means)), np.inf)
        for i in range(len(means)):
            for j in range(i + 1, len(means)):
                grown = masses[i] * masses[j] / (masses[i] + masses[j]) * ((means[i] - means[j]) ** 2).sum()
                cost[i, j] = np.sqrt(2 * grown)
        rows = np.argsort(cost.min(1), kind="stable")[: min(5, len(means) - 1)]
        i = int(rows[draw(cost.min(1)[rows])])
        j = int(cost[i].argmin())
        spent += cost[i, j] ** 2 / 2
        total = masses[i] + masses[j]
        means[i], masses[i] = (masses[i] * means[i] + masses[j] * means[j]) / total, total
        del means[j], masses[j]
    return spent


def test_stochastic_ward_draws_as_published() -> None:
    """The distribution of results over single restarts, against the plain method with NumPy's random numbers."""
    x, k, runs = blobs(14, 3, d=3), 9, 600
    rng = np.random.default_rng(0)

    def draw(cost: np.ndarray) -> int:
        excess = cost - cost.min()
        chance = np.exp(-excess / excess.mean())
        return int(rng.choice(len(cost), p=chance / chance.sum()))

    from partialfusion.solvers.clustering._random import seeded
    from partialfusion.solvers.clustering._ward import stochastic

    squared, ones = squared_distances(x), np.ones(14)
    ours = [inertia(x, stochastic(squared, ones, k, seeded(np.uint64(0), run))) for run in range(runs)]
    theirs = [reference_restart(x, k, draw) for _ in range(runs)]
    grid = np.quantile(theirs, np.linspace(0.02, 0.98, 25))
    gap = np.abs((np.array(ours)[:, None] <= grid + 1e-9).mean(0) - (np.array(theirs)[:, None] <= grid + 1e-9).mean(0))
    assert gap.max() < 1.63 * np.sqrt(2 / runs)  # Kolmogorov and Smirnov, one per cent


def test_channels_without_mass_join_their_nearest_cluster() -> None:
    x = blobs(60)
    m = np.ones(60)
    m[40:] = 0.0
    for name, solve in SOLVERS.items():
        found = solve(x, 25, m)
        check(found, compared(name, x), 25, m)
        if name in ("ward", "zip_pairs"):
            continue  # greedy: the centre that was nearest may have moved
        centres = np.array(
            [np.average(x[found.labels == c], axis=0, weights=m[found.labels == c] + 1e-12) for c in range(25)]
        )
        distance = ((x[40:, None] - centres) ** 2).sum(-1)
        alone = np.bincount(found.labels, minlength=25)[found.labels[40:]] == 1
        assert (alone | (distance.argmin(1) == found.labels[40:])).all(), name


def test_more_clusters_than_channels_with_mass() -> None:
    x, m = blobs(20), np.zeros(20)
    m[[4, 9]] = 1.0
    for name, solve in SOLVERS.items():
        check(solve(x, 6, m), compared(name, x), 6, m)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("k", [17, 12, 8, 3])
def test_zip_gives_no_place_to_channels_without_mass(k: int, across: bool) -> None:
    x, groups = blobs(20, d=15), np.arange(20) % 3
    m = np.where(groups == 1, 0.0, 0.3 + np.arange(20) / 20)
    heavy, light = np.flatnonzero(m), np.flatnonzero(m == 0)
    found = zip_pairs(np.cov(x), k, m, groups=groups, across=across)
    expected = zip_pairs(np.cov(x[heavy]), min(k, len(heavy)), m[heavy], groups=groups[heavy], across=across)
    assert [found.labels[heavy].tolist().index(c) for c in found.labels[heavy]] == [
        expected.labels.tolist().index(c) for c in expected.labels
    ]
    assert found.inertia == pytest.approx(expected.inertia)
    if k > len(heavy):
        assert not set(found.labels[heavy]) & set(found.labels[light])
        return
    means = np.array([np.average(x[found.labels == c], axis=0, weights=m[found.labels == c]) for c in range(k)])
    assert (np.corrcoef(x[light], means)[: len(light), len(light) :].argmax(1) == found.labels[light]).all()


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("k", [20, 16, 12, 10, 7, 3])
def test_zip_is_the_greedy_of_its_definition(k: int, across: bool) -> None:
    rng = np.random.default_rng(k)
    x, m, groups = blobs(20, d=15), rng.random(20) + 0.2, np.arange(20) % 2
    x[5] = 0.3  # constant
    clusters = [[i] for i in range(20)]
    while len(clusters) > k:
        means = np.array([np.average(x[c], axis=0, weights=m[c]) for c in clusters])
        varied = np.ptp(means, axis=1) > 1e-9
        correlation = np.zeros((len(means), len(means)))
        correlation[np.ix_(varied, varied)] = np.corrcoef(means[varied])
        models = [{int(groups[i]) for i in c} for c in clusters]
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a + 1, len(clusters))]
        apart = [(a, b) for a, b in pairs if not models[a] & models[b]]
        pairs = apart if across and apart else pairs
        used: set[int] = set()
        for a, b in sorted(pairs, key=lambda p: (-correlation[p], p)):
            if not used & {a, b} and len(clusters) - len(used) // 2 > k:
                used |= {a, b}
                clusters[a] = clusters[a] + clusters[b]
                clusters[b] = []
        clusters = [c for c in clusters if c]
    labels = np.empty(20, int)
    for c in clusters:
        labels[c] = min(c)
    found = zip_pairs(covariance(x), k, m, groups=groups, across=across)
    assert len(set(zip(found.labels, labels, strict=True))) == k
    check(found, centred(x), k, m)


def test_zip_across_fuses_no_two_channels_of_a_model() -> None:
    x, groups = blobs(40), np.arange(40) // 20
    found = zip_pairs(covariance(x), 20, groups=groups, across=True)
    for c in range(20):
        assert sorted(groups[found.labels == c]) == [0, 1]


def test_distances_give_what_features_give() -> None:
    x, m = blobs(50), np.random.default_rng(0).random(50) + 0.1
    squared, fast = ((x[:, None] - x[None]) ** 2).sum(-1), squared_distances(x)
    assert fast == pytest.approx(squared, rel=1e-9)
    start = np.arange(50) % 20
    both = [
        (ward(fast, 20, m), ward(squared, 20, m)),
        (stochastic_ward(fast, 20, m, restarts=20), stochastic_ward(squared, 20, m, restarts=20)),
        (lloyd(fast, 20, m), lloyd(squared, 20, m)),
        (lloyd(fast, 20, m, start=start), lloyd(squared, 20, m, start=start)),
        (exchange(fast, start, m), exchange(squared, start, m)),
        (cluster(fast, 20, m), cluster(squared, 20, m)),
    ]
    for ours, theirs in both:
        assert (ours.labels == theirs.labels).all()
        assert ours.inertia == pytest.approx(theirs.inertia, rel=1e-9)
    found = zip_pairs(covariance(x), 30, m)
    assert (found.labels == zip_pairs(7 * np.cov(x), 30, m).labels).all()
    assert found.inertia == pytest.approx(inertia(centred(x), found.labels, m))


def test_close_points_far_away_keep_their_distances() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(20, 6)), 1e8 + np.round(rng.normal(size=(20, 6)) * 64) / 64])
    x[7] = x[25]
    exact = ((x[:, None] - x[None]) ** 2).sum(-1)
    assert squared_distances(x) == pytest.approx(exact, rel=1e-6)
    assert squared_distances(x)[7, 25] == 0.0


def test_thousands_of_channels() -> None:
    squared = squared_distances(blobs(1500, d=20, centres=500))
    assert cluster(squared, 900, effort=0.02).inertia < ward(squared, 900).inertia
    assert stochastic_ward(squared, 900, restarts=2).inertia > 0
