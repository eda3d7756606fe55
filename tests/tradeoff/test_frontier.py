"""Every point is what the library makes by hand; nothing is lost, nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Signature
from partialfusion.fusing import pipeline
from partialfusion.fusing.budget import Stopwatch, latency
from partialfusion.fusing.scoring import Scorer
from partialfusion.tradeoff import Frontier, Point, measure
from zoo import ZOO, identical, snapshot

Batches = list[tuple[Tensor, Tensor]]


def accuracy(output: Any, batches: Batches) -> float:
    """Counted one sample after the other, from a function of inputs."""
    right = [
        int(row.argmax()) == int(label) for x, labels in batches for row, label in zip(output(x), labels, strict=True)
    ]
    return sum(right) / len(right)


def test_parents_and_ensembles_are_scored_by_their_outputs(
    two: pf.Frontier, models: list[nn.Module], labelled: Batches
) -> None:
    a, b = models[:2]
    size = sum(p.numel() for p in b.parameters())
    parents = [p for p in two.points if p.kind == "parent"]
    assert [(p.method, p.mix, p.ratio, p.effective) for p in parents] == [
        ("model A", (1.0, 0.0), 1.0, size),
        ("model B", (0.0, 1.0), 1.0, size),
    ]
    assert [p.score for p in parents] == [accuracy(a, labelled), accuracy(b, labelled)]
    ensembles = [p for p in two.points if p.kind == "ensemble"]
    assert [p.mix for p in ensembles] == [(0.25, 0.75), (0.5, 0.5), (0.75, 0.25)]
    for point in ensembles:
        mixed = accuracy(lambda x, mix=point.mix: mix[0] * a(x) + mix[1] * b(x), labelled)
        assert (point.score, point.effective, point.ratio) == (mixed, 2 * size, 2.0)


def test_fused_points_are_what_fuse_makes(
    two: pf.Frontier, models: list[nn.Module], x: Tensor, labelled: Batches
) -> None:
    methods = {"average": "average", "partial-ot": "partial-ot", "ends </script><b>": "zip"}
    points = [p for p in two.points if p.kind == "fused" and p.error is None]
    assert len(points) == 3 + 9 + 9
    for point in points[::2]:
        result = pf.fuse(models[:2], x, alpha=point.alpha, mix=point.mix, method=methods[point.method])
        summary = result.summary()
        assert point.score == accuracy(result.model, labelled)
        assert (point.effective, point.dense, point.ratio) == (
            result.count.effective,
            result.count.dense,
            result.count.ratio,
        )
        assert tuple(s.summary for s in point.spaces) == summary.spaces
        assert point.fused == sum(s.fused for s in summary.spaces)
        assert point.isolated == sum(sum(s.isolated) for s in summary.spaces)


def test_methods_that_fuse_everything_are_measured_at_one_size(two: pf.Frontier) -> None:
    assert {p.alpha for p in two.points if p.method == "average"} == {0.0}
    assert {p.alpha for p in two.points if p.method == "partial-ot"} == {0.0, 0.4, 1.0}


def test_options_of_a_method_have_an_effect_or_are_refused(
    models: list[nn.Module], x: Tensor, labelled: Batches
) -> None:
    methods: dict[str, dict[str, Any]] = {"equal": {}, "weighted": {"masses": "incoming"}}
    found = pf.frontier(models[:2], x, evaluate=labelled, alphas=(0.4,), methods=methods, progress=False)
    for point, options in zip(found.points[3:], methods.values(), strict=True):
        assert point.cost == pf.fuse(models[:2], x, alpha=0.4, **options).summary().cost
    assert found.points[3].cost != found.points[4].cost
    for option, value in (("device", "cpu"), ("allow_shortfall", True), ("mix", 0.3)):
        with pytest.raises(pf.OptionError, match="is not an option here"):
            pf.frontier(models[:2], x, evaluate=labelled, methods={"mine": {option: value}})


def test_what_fails_is_kept_with_its_reason(two: pf.Frontier) -> None:
    assert {p.method for p in two.failed} == {"no such space"}
    assert len(two.failed) == 3
    for point in two.failed:
        assert point.error is not None
        assert "elsewhere" in point.error
        assert point.score is None
    assert "elsewhere" in two.table()
    assert two.complete


def test_a_network_that_cannot_be_measured_is_kept(models: list[nn.Module], x: Tensor) -> None:
    def evaluate(model: nn.Module) -> float:
        if type(model) is not type(models[0]):
            raise RuntimeError("this measure knows no ensembles\nat all")
        return float("nan") if sum(p.numel() for p in model.parameters()) > 600 else 1.0

    found = pf.frontier(models[:2], x, evaluate=evaluate, alphas=(0, 1), progress=False)
    _, _, ensemble, small, large = found.points
    assert ensemble.error == "RuntimeError: this measure knows no ensembles"
    assert small.score == 1.0
    assert large.error is not None
    assert "nan" in large.error
    assert large.effective is not None


def test_the_size_is_that_of_the_module_or_of_its_blocks(models: list[nn.Module], x: Tensor, labelled: Batches) -> None:
    options = {"evaluate": labelled, "alphas": (0.0, 0.5), "data": [x], "refit": True, "progress": False}
    dense, effective = (pf.frontier(models[:2], x, size=size, **options) for size in ("dense", "effective"))
    for found in (dense, effective):
        assert [p.parameters for p in found.points] == [getattr(p, found.size) for p in found.points]
        single = found.points[1].parameters
        assert [p.ratio for p in found.points] == [p.parameters / single for p in found.points]
        assert found.to_dict()["size"] == found.size
    assert dense.points[-1].effective == dense.points[-1].dense, "refitting fills the zero blocks of a module"
    assert effective.points[-1].effective < effective.points[-1].dense
    assert "by parameters as blocks" in str(effective)
    with pytest.raises(pf.OptionError, match="size='blocks' is not known"):
        pf.frontier(models[:2], x, size="blocks", **options)


def test_budgets_are_what_fuse_makes_of_them(models: list[nn.Module], x: Tensor, labelled: Batches) -> None:
    ways = {"average": {"method": "average"}, "partial-ot": {}, "small": {"method": "cluster", "alpha": 0.0}}
    bounds = (1.2, pf.Budget(params=1.3), 1.2)
    found = pf.frontier(models[:2], x, evaluate=labelled, methods=ways, budgets=bounds, progress=False)
    fused = [p for p in found.points if p.kind == "fused"]
    assert [(p.method, p.alpha, p.budget) for p in fused] == [
        ("average", 0.0, None),
        ("partial-ot", None, "1.2"),
        ("partial-ot", None, "params 1.3"),
        ("small", 0.0, None),
    ]
    for point, budget in zip(fused[1:3], bounds, strict=False):
        expected = pf.fuse(models[:2], x, budget=budget)
        assert (point.dense, point.effective) == (expected.count.dense, expected.count.effective)
        assert point.score == accuracy(expected.model, labelled)
    assert "budget" in found.table().splitlines()[0]
    assert [row["budget"] for row in found.rows()][-3:-1] == ["1.2", "params 1.3"]
    both = pf.frontier(models[:2], x, evaluate=labelled, alphas=(0.5,), budgets=[1.3], progress=False)
    assert [(p.alpha, p.budget) for p in both.points[3:]] == [(0.5, None), (None, "1.3")]
    for bad in (1.2, "1.2", ()):
        with pytest.raises(pf.OptionError, match="budgets="):
            pf.frontier(models[:2], x, evaluate=labelled, budgets=bad)


def test_operations_are_those_of_the_module(two: pf.Frontier, models: list[nn.Module], x: Tensor) -> None:
    weights = [p for p in models[1].parameters() if p.dim() == 2]
    single = 2 * len(x) * sum(p.numel() for p in weights)
    parent, ensemble = two.points[1], next(p for p in two.points if p.kind == "ensemble")
    assert (parent.flops, ensemble.flops) == (single, 2 * single)
    fused = pf.fuse(models[:2], x, alpha=0.4).model
    point = next(p for p in two.points if p.method == "partial-ot" and p.alpha == 0.4)
    assert point.flops == 2 * len(x) * sum(p.numel() for p in fused.parameters() if p.dim() == 2)
    assert (two.samples, two.to_dict()["samples"]) == (12, 12)
    assert {p.latency for p in two.points} == {None}


def test_latency_is_measured_where_it_is_asked_for(
    models: list[nn.Module], x: Tensor, labelled: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each size, as it is and as blocks; parents and ensembles have one form."""
    timed: list[list[str]] = []
    original = Stopwatch.ratios

    def ratios(self: Stopwatch, others: Any) -> dict[str, float]:
        timed.append(list(others))
        return original(self, others)

    monkeypatch.setattr(Stopwatch, "ratios", ratios)
    monkeypatch.setattr(latency, "SECONDS", 0.0)
    monkeypatch.setattr(latency, "FEWEST", 3)
    options = {"evaluate": labelled, "alphas": (0, 0.5), "mixes": (0.3, 0.5), "latency": True, "progress": False}
    found = pf.frontier(models[:2], x, **options)
    assert timed[:3] == [["other"], ["other"], ["dense"]], "one parent, the ensemble, and what has no zero blocks"
    assert len(timed) == 5
    assert "one by one" in timed[3], "what auto is chosen by"
    assert set(timed[4]) - {"auto"} == {"dense", "blocks"}
    assert found.points[1].latency == {"dense": 1.0, "blocks": 1.0, "auto": 1.0}
    assert all(min(p.latency.values()) > 0 for p in found.points)
    first, second = (p.latency for p in found.points if p.alpha == 0.5)
    assert first == second, "the mix makes no difference"
    row = found.rows()[-1]
    assert [row[f"latency_{form}"] for form in ("dense", "blocks", "auto")] == [*found.points[-1].latency.values()]
    assert "latency blocks auto" in " ".join(found.table().splitlines()[0].split())


def test_what_is_slower_than_the_ensemble_is_marked() -> None:
    def point(kind: str, name: str, ratio: float) -> Point:
        latency = {"dense": ratio, "blocks": 1.5, "auto": 1.5}
        mix = (0.0, 1.0) if kind == "parent" else (0.5, 0.5)
        return Point(kind, name, None, mix, 0.5, 10, 10, 10, 1.0, latency=latency)

    points = (point("parent", "B", 1.0), point("ensemble", "ensemble", 2.0), point("fused", "slow", 2.1))
    found = Frontier((*points, point("fused", "quick", 1.9)), ("A", "B"))
    slow, quick = found.rows()[-2:]
    assert (slow["slower"], quick["slower"]) == ("dense", None)
    lines = {line.split()[0]: line for line in found.table().splitlines()}
    assert "2.10!" in lines["slow"]
    assert "!" not in lines["quick"]
    assert "slower than the ensemble" in found.table()
    assert "Slower than the ensemble" in found.to_html()


def test_the_sources_stay_and_the_blueprint_is_traced_once(
    models: list[nn.Module], x: Tensor, labelled: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []
    original = measure.traced

    def trace(*args: Any, **options: Any) -> pf.Blueprint:
        traced.append(args)
        return original(*args, **options)

    monkeypatch.setattr(measure, "traced", trace)
    pair = [ZOO["vgg-bn"].model(seed).train() for seed in (0, 1)]
    before = [snapshot(m) for m in pair]
    images = ZOO["vgg-bn"].inputs()
    data = [ZOO["vgg-bn"].inputs(seed) for seed in (1, 2)]
    pf.frontier(pair, images, evaluate=lambda m: float(m(images).sum()), alphas=(0, 0.5), data=data, progress=False)
    assert len(traced) == 1
    assert all(identical(state, model) for state, model in zip(before, pair, strict=True))
    assert all(module.training for model in pair for module in model.modules())
    blueprint = pf.trace(models[1], x)
    pf.frontier(models[:2], x, evaluate=labelled, alphas=(0,), blueprint=blueprint, progress=False)
    assert len(traced) == 1


def test_mixes_share_what_was_matched(
    models: list[nn.Module], x: Tensor, labelled: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search for every method and size, and yet the scores are those of `fuse` for every mix."""
    searched = []
    original = pipeline.Pipeline.reduce

    def reduce(*args: Any, **options: Any) -> pipeline.Reduced:
        searched.append(args)
        return original(*args, **options)

    monkeypatch.setattr(pipeline.Pipeline, "reduce", reduce)
    mixes, sizes = ((0.5, 0.5), (0.2, 0.8), (0.0, 1.0)), (0.0, 0.4)
    found = pf.frontier(models[:2], x, evaluate=labelled, alphas=sizes, mixes=mixes, progress=False)
    assert len(searched) == len(sizes)
    monkeypatch.undo()
    scorer = Scorer.of(labelled, Signature())
    fused = [p for p in found.points if p.kind == "fused"]
    assert len(fused) == len(mixes) * len(sizes)
    for point in fused:
        expected = pf.fuse(models[:2], x, alpha=point.alpha, mix=point.mix)
        assert point.score == scorer(expected.model)
        assert point.effective == expected.count.effective


def test_the_front_is_what_comparing_all_pairs_gives() -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        drawn = zip(rng.integers(1, 8, 15), rng.integers(0, 6, 15), strict=True)
        points = [pf.Point("fused", str(k), 0.0, (1.0,), float(s), int(n)) for k, (n, s) in enumerate(drawn)]
        points.insert(4, pf.Point("fused", "failed", 0.0, (1.0,), error="why"))
        known = [p for p in points if p.score is not None]
        expected = {
            p.method
            for p in known
            if not any(
                (q.parameters <= p.parameters and q.score > p.score)
                or (q.parameters < p.parameters and q.score >= p.score)
                for q in known
            )
        }
        front = pf.Frontier(tuple(points), ("model A",)).pareto()
        assert {p.method for p in front} == expected
        assert [p.parameters for p in front] == sorted(p.parameters for p in front)


def test_rounding_puts_no_larger_network_on_the_front() -> None:
    small = pf.Point("fused", "small", 0.0, (1.0,), -0.3, 10)
    same = pf.Point("fused", "same", 1.0, (1.0,), -0.3 + 1e-9, 20)
    better = pf.Point("fused", "better", 1.0, (1.0,), -0.2, 30)
    found = pf.Frontier((better, same, small), ("model A",))
    assert found.pareto() == (small, better)


def test_best_fits_the_budget(two: pf.Frontier) -> None:
    scored = [p for p in two.points if p.score is not None]
    for ratio in (1.0, 1.5, None):
        best = two.best(ratio=ratio)
        fitting = [p.score for p in scored if ratio is None or p.ratio <= ratio]
        assert best.score == max(fitting)
        assert ratio is None or best.ratio <= ratio
    with pytest.raises(pf.OptionError, match="the smallest has"):
        two.best(ratio=0.01)


def test_an_interrupt_keeps_what_was_measured(models: list[nn.Module], x: Tensor) -> None:
    calls = iter([1.0, 2.0, 3.0, 4.0])

    def evaluate(model: nn.Module) -> float:
        try:
            return next(calls)
        except StopIteration:
            raise KeyboardInterrupt from None

    found = pf.frontier(models[:2], x, evaluate=evaluate, alphas=(0, 0.5, 1), progress=False)
    assert not found.complete
    assert [p.score for p in found.points] == [1.0, 2.0, 3.0, 4.0]
    assert "interrupted" in found.table()

    def at_once(model: nn.Module) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pf.frontier(models[:2], x, evaluate=at_once, progress=False)


def test_a_search_that_was_interrupted_is_not_a_point(
    models: list[nn.Module], x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends a clustering early with the best found; a frontier must not show that as the method's result."""
    original = pipeline.Pipeline.reduce

    def reduce(*args: Any, **options: Any) -> pipeline.Reduced:
        result = original(*args, **options)
        for reduction in result.fusion.plan.values():
            object.__setattr__(reduction, "converged", False)
        return result

    monkeypatch.setattr(pipeline.Pipeline, "reduce", reduce)
    found = pf.frontier(models[:2], x, evaluate=lambda m: 0.0, methods=("zip",), alphas=(0.4,), progress=False)
    assert not found.complete
    assert {p.kind for p in found.points} == {"parent", "ensemble"}


def test_progress_grows_to_the_end(models: list[nn.Module], x: Tensor, labelled: Batches) -> None:
    told: list[tuple[str, float]] = []
    pf.frontier(models[:2], x, evaluate=labelled, alphas=(0, 1), progress=lambda step, done: told.append((step, done)))
    shares = [done for _, done in told]
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1.0
    assert any("alpha 1" in step for step, _ in told)


def test_labels_of_positions_count_one_by_one(models: list[nn.Module]) -> None:
    """Outputs of (n × classes × positions), labels of (n × positions); batches that can be read only once."""
    net = nn.Sequential(nn.Conv1d(2, 6, 1), nn.ReLU(), nn.Conv1d(6, 3, 1)).eval()
    inputs = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    before, state = net(inputs), snapshot(net)
    labels = before.argmax(1)
    labels[0, 0] = (labels[0, 0] + 1) % 3

    def once() -> Iterator[tuple[Tensor, Tensor]]:
        yield inputs, labels

    found = pf.frontier([net, net], inputs, evaluate=once(), alphas=(0, 1), progress=False)
    assert [p.score for p in found.points] == [19 / 20] * 5
    assert identical(state, net)
    assert torch.equal(net(inputs), before)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"evaluate": torch.zeros(3)}, "pass a function of a model"),
        ({"evaluate": 3}, "pass a function of a model"),
        ({"evaluate": []}, "no labelled batch"),
        ({"evaluate": [torch.zeros(4, 10)]}, "pass \\(input, label\\) batches"),
        ({"evaluate": [(torch.zeros(4, 10), torch.zeros(4, 5))]}, "labels of shape"),
        ({"evaluate": lambda model: "good"}, "neither a number"),
        ({"evaluate": lambda model: 1 / 0}, "evaluate failed on model A: ZeroDivisionError"),
        ({"alphas": (0.2, 1.5)}, "1.5 is not a number"),
        ({"alphas": ()}, "one or more numbers"),
        ({"methods": "partial-ot"}, "must be a list of methods"),
        ({"methods": ()}, "at least one"),
        ({"methods": ("partial-mud",)}, "partial-mud"),
        ({"methods": {"own": {"mixture": 1}}}, "'mixture' is not an option"),
        ({"methods": {"own": "ot"}}, "give options of fuse"),
        ({"methods": {"own": {"alpha": 0.2, "budget": 1.2}}}, "exclude each other"),
        ({"mixes": ()}, "must be a list of mixes"),
        ({"mixes": ((0.5, 0.4),)}, "sum to one"),
        ({"mixes": ((0.5, 0.3, 0.2),)}, "3 shares for 2 models"),
        ({"names": ("one", "one")}, "2 different names"),
        ({"names": 5}, "2 different names"),
        ({"blueprint": "mine"}, "blueprint is a str: pass what pf.trace returned"),
        ({"evaluate": [(torch.zeros(2, 10), torch.tensor([0.1, 0.2]))]}, "labels that are no whole numbers"),
        ({"refit": True}, "refit needs data"),
        ({"features": "activations"}, "needs data"),
    ],
)
def test_bad_options_are_named_before_anything_is_fused(
    models: list[nn.Module], x: Tensor, labelled: Batches, options: dict[str, Any], told: str, monkeypatch: Any
) -> None:
    def reduce(*args: Any, **options: Any) -> None:
        raise AssertionError("fused")

    monkeypatch.setattr(pipeline.Pipeline, "reduce", reduce)
    with pytest.raises(pf.FusionError, match=told):
        pf.frontier(models[:2], x, **{"evaluate": labelled, "progress": False, **options})
