"""The methods one by one: what they keep, how they are interrupted, what they refuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import partialfusion as pf
from partialfusion.features import UnionSpace
from partialfusion.fusing.methods import Preference, Search
from partialfusion.kernels import Choice
from zoo import ZOO, error

EXHIBIT = ZOO["mlp"]
X = EXHIBIT.inputs()
DATA = [torch.randn(200, 10, generator=torch.Generator().manual_seed(3))]


class Known:
    """Features that are given."""

    def __init__(self, points: np.ndarray, importance: np.ndarray) -> None:
        self.points, self.importance = points, importance

    def squared(self, space: str) -> np.ndarray:
        return ((self.points[:, None] - self.points[None]) ** 2).sum(-1)

    def norms(self, space: str, *, outgoing: bool) -> np.ndarray:
        return self.importance


def union(points: np.ndarray, importance: np.ndarray, masses: np.ndarray) -> UnionSpace:
    return UnionSpace("space", masses, np.zeros(len(masses), np.int64), Known(points, importance))  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["incoming", "outgoing", "activation"])
def test_magnitude_keeps_the_most_important_channels(by: str) -> None:
    model = EXHIBIT.model(0)
    options = {"data": DATA, "site": "pre", "norm": "analytic"}  # without repair, which scales what is kept
    result = pf.prune(model, X, keep={"2": 0.4}, method=pf.Magnitude(by=by), **options)
    hidden = torch.nn.functional.gelu(model[0](DATA[0]))
    importance = {
        "incoming": torch.cat([model[2].weight, model[2].bias[:, None]], 1).norm(dim=1),
        "outgoing": model[5].weight.norm(dim=0),
        "activation": model[2](hidden).std(0),
    }[by]
    kept = importance.argsort(descending=True)[:6].sort().values
    assert torch.equal(result.model[2].weight, model[2].weight[kept])
    assert torch.equal(result.model[5].weight, model[5].weight[:, kept])
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert result.plan["2"].deleted == 9


def test_shares_weigh_the_importance() -> None:
    a, b = EXHIBIT.model(0), EXHIBIT.model(1)
    fused = pf.fuse([a, b], X, alpha=0.0, mix=(0.01, 0.99), method="magnitude")
    assert all(fused.plan[s].isolated[0] == 0 for s in ("0", "2", "5"))
    fused = pf.fuse([a, b], X, alpha=0.0, mix=(0.99, 0.01), method="magnitude")
    assert all(fused.plan[s].isolated[1] == 0 for s in ("0", "2", "5"))


@pytest.mark.parametrize("zeros", [0, 3, 9])
def test_transport_moves_everything_onto_what_is_kept(zeros: int) -> None:
    rng = np.random.default_rng(zeros)
    masses = np.where(np.arange(12) < zeros, 0.0, 0.5)
    space = union(rng.normal(size=(12, 3)), rng.random(12), masses)
    choice = pf.Magnitude(transport=True).choose(space, 5, Search())
    sent = np.bincount(choice.source, choice.mass, 12)
    taken = np.bincount(choice.target, choice.mass, 5)
    assert sent == pytest.approx(masses)
    kept = np.sort(np.argsort(-space.importance("incoming"), kind="stable")[:5])
    heavy = masses[kept] > 0
    assert taken[heavy] == pytest.approx(masses.sum() / heavy.sum())
    assert taken[~heavy] == pytest.approx(0.0)
    assert set(choice.source) == set(range(12))
    everything = pf.Magnitude(transport=True).choose(space, 11, Search())
    assert everything.targets == 11


def test_solvers_of_clustering_differ_only_in_how_far_they_get() -> None:
    model = EXHIBIT.model(0)
    costs = {}
    for method in (
        pf.Cluster(),
        pf.Cluster("ward"),
        pf.Cluster("stochastic-ward", restarts=50),
        pf.Cluster("lloyd"),
    ):
        result = pf.prune(model, X, keep=0.5, method=method, data=DATA)
        assert [result.plan[s].width for s in ("0", "2", "5")] == [6, 8, 6]
        costs[method.solver] = result.plan.cost
    assert costs["exchange"] <= min(costs.values()) * (1 + 1e-9)


def test_pairs_across_models_only() -> None:
    a, b = EXHIBIT.model(0), EXHIBIT.model(1)
    fused = pf.fuse([a, b], X, alpha=0.5, method=pf.Zip(across=True), data=DATA)
    for space in ("0", "2", "5"):
        reduction = fused.plan[space]
        assert reduction.fused == reduction.combined == 2 * reduction.pairs[0].sources - reduction.width


def test_interrupting_keeps_the_best_found() -> None:
    model = EXHIBIT.model(0)
    told: list[tuple[str, float]] = []

    def interrupt(label: str, done: float) -> None:
        told.append((label, done))
        if label.startswith("0 ") and done > 0:
            raise KeyboardInterrupt

    method = pf.Cluster("stochastic-ward", restarts=100_000, workers=1)
    result = pf.prune(model, X, keep=0.5, method=method, data=DATA, progress=interrupt)
    assert [result.plan[s].width for s in ("0", "2", "5")] == [6, 8, 6]
    assert not result.plan.converged
    assert "interrupted" in str(result.summary())
    assert all(0 <= share <= 1 for _, share in told)
    greedy = pf.prune(model, X, keep=0.5, method=pf.Cluster("ward"), data=DATA)
    assert result.plan["0"].cost <= greedy.plan["0"].cost * (1 + 1e-9)
    assert result.plan["2"].cost == pytest.approx(greedy.plan["2"].cost)


def test_a_method_of_ones_own() -> None:
    @dataclass(frozen=True)
    class First:
        name = "first"
        needs_data = False
        prefers = Preference()

        def choose(self, space: UnionSpace, k: int, search: Search) -> Choice:
            return Choice.of_kept(np.arange(k))

    model = EXHIBIT.model(0)
    result = pf.prune(model, X, keep=0.5, method=First())
    assert torch.equal(result.model[0].weight, model[0].weight[:6])
    assert result.recipe.method == "first"


def test_summaries_say_what_was_combined_and_deleted() -> None:
    a, b = EXHIBIT.model(0), EXHIBIT.model(1)
    text = str(pf.prune(a, X, keep=0.5, method="magnitude").summary())
    assert "deleted" in text
    assert "fused" not in text
    text = str(pf.fuse([a, b], X, alpha=0.2, method="cluster").summary())
    assert all(word in text for word in ("fused", "isolated", "combined", "deleted", "Cluster(solver='exchange'"))
    assert "keep=0.5" in repr(pf.prune(a, X))


def test_conventions_agree_for_equal_relu_channels() -> None:
    model = ZOO["mlp-relu-no-bias"].model(0)
    value = pf.fuse([model, model], X, alpha=0.0, method="cluster", data=DATA)
    mass = pf.fuse([model, model], X, alpha=0.0, method="cluster", data=DATA, convention="mass")
    assert error(value.model(X), model(X)) < 1e-5
    assert error(mass.model(X), model(X)) < 1e-5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": 0.0}, "keep=0.0"),
        ({"keep": 1.2}, "out of range"),
        ({"keep": "half"}, "must be a number"),
        ({"keep": {"nothing": 0.5}}, "no elastic space matches 'nothing'"),
        ({"keep": {"7": 0.5}}, "7 is rigid"),
        ({"method": "partial-ot"}, "choose one of auto, cluster, interpolate, zip, magnitude, magnitude+ot"),
        ({"method": 3}, "method=3 is not known"),
        ({"method": pf.Magnitude(by="activation")}, "needs data"),
        ({"features": "activations"}, "needs data"),
        ({"site": "after"}, "site='after'"),
        ({"data": [torch.full((4, 10), 3e38)]}, "not finite"),
    ],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(pf.FusionError, match=words.replace("+", "\\+")):
        pf.prune(EXHIBIT.model(0), X, **options)  # type: ignore[arg-type]


def test_bad_settings() -> None:
    for build in (
        lambda: pf.Cluster("kmeans"),  # type: ignore[arg-type]
        lambda: pf.Cluster(restarts=5),
        lambda: pf.Cluster("lloyd", restarts=0),
        lambda: pf.Cluster(effort=-1),
        lambda: pf.Magnitude(by="size"),  # type: ignore[arg-type]
    ):
        with pytest.raises(pf.OptionError):
            build()
    with pytest.raises(pf.OptionError, match="not a torch.nn.Module"):
        pf.prune([EXHIBIT.model(0)], X)  # type: ignore[arg-type]


@pytest.mark.parametrize(("function", "after"), [(nn.ReLU, True), (nn.GELU, False)])
def test_where_there_is_relu_clusters_compare_what_is_read(function: type[nn.Module], after: bool) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 12), function(), nn.Linear(12, 3)) for _ in range(2)]
    x = torch.randn(40, 6)
    auto, pre, post = (
        pf.fuse(models, x[:2], alpha=0.0, method="cluster", features="activations", site=site, data=[x])
        for site in ("auto", "pre", "post")
    )
    assert torch.equal(auto.model(x), (post if after else pre).model(x))
    assert not torch.equal(pre.model(x), post.model(x))
