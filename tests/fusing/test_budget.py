"""Budgets: counts foretold are counts found, bounds hold, and channels go where they save most."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.errors import OptionError
from partialfusion.fusing.budget import Path, Sizes, Structure, allocate, latency
from partialfusion.fusing.budget.paths import _readers, support_of
from partialfusion.fusing.budget.sizes import Support
from partialfusion_study.networks import ResNet18, mlp
from zoo import ZOO


def pair(width=12):
    torch.manual_seed(0)
    return [mlp(10, width, width + 3, width, 5, bias=True).eval() for _ in range(2)], torch.randn(4, 10)


@pytest.mark.parametrize("method", ["partial-ot", "cluster", "magnitude"])
@pytest.mark.parametrize("name", ZOO)
def test_foretold_counts_are_the_counts_of_the_result(name, method):
    models, x = [ZOO[name].model(0), ZOO[name].model(1)], ZOO[name].inputs()
    result = pf.fuse(models, x, alpha=0.5, method=method, blueprint=ZOO[name].blueprint)
    blueprint = result.blueprint
    structure = Structure(models[-1], blueprint, Inputs.of(x), 2)
    supports = {s.name: support_of(result.plan[s.name].support()) for s in blueprint if s.kind == "elastic"}
    found = structure.sizes(supports)
    assert found.params == result.count.effective
    assert found.dense == result.count.dense


def test_operations_are_those_of_the_module_that_is_returned():
    torch.manual_seed(0)
    models, x = [ResNet18(4).eval() for _ in range(2)], torch.randn(2, 3, 32, 32)
    result = pf.fuse(models, x, budget=pf.Budget(flops=1.5))
    counts = []
    for model in (models[-1], result.model):
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(x)
        counts.append(counter.get_total_flops())
    assert 1.3 * counts[0] < counts[1] <= 1.5 * counts[0]
    assert result.operations == pytest.approx(counts[1] / counts[0])
    assert f"operations: {result.operations:.2f}× one model" in str(result.summary())


def test_more_operations_than_the_models_are_told(caplog):
    """Early layers of a ResNet have few parameters and most of the operations."""
    torch.manual_seed(0)
    models, x = [ResNet18(4).eval() for _ in range(2)], torch.randn(2, 3, 32, 32)
    result = pf.fuse(models, x, budget=1.9, method="magnitude")
    assert (result.operations > 2) == ("more than the models one by one" in caplog.text)
    assert result.operations > 2


def test_operations_are_those_that_torch_counts():
    model, x = ResNet18(4).eval(), torch.randn(2, 3, 32, 32)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(x)
    found = Structure(model, pf.trace(model, x), Inputs.of(x), 1).sizes({})
    assert found.flops == counter.get_total_flops()
    assert found.params == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("budget", [1.0, 1.1, 1.37, 1.8, 2.0])
def test_a_plain_number_is_what_the_module_costs(budget):
    models, x = pair(40)
    result = pf.fuse(models, x, budget=budget)
    single, found = (sum(p.numel() for p in m.parameters()) for m in (models[-1], result.model))
    assert budget - 0.08 < found / single <= budget
    assert result.count.ratio == found / single
    assert f"{found:,}, {found / single:.2f}× one model" in str(result.summary())
    assert result.recipe.alpha == pf.fuse(models, x, budget=pf.Budget(dense=budget)).recipe.alpha


@pytest.mark.parametrize("budget", [1.0, 1.1, 1.37, 1.8, 2.0])
def test_a_budget_of_effective_parameters_holds_and_is_used(budget):
    models, x = pair(40)
    result = pf.fuse(models, x, budget=pf.Budget(params=budget))
    assert budget - 0.08 < result.count.effective_ratio <= budget
    if budget == 1.0:
        assert set(result.recipe.alpha.values()) == {0.0}
    if budget == 2.0:
        assert set(result.recipe.alpha.values()) == {1.0}
        mean = (models[0](x) + models[1](x)) / 2
        assert torch.allclose(result.model(x), mean, atol=1e-5)


@pytest.mark.parametrize("method", ["cluster", "zip", "magnitude", "magnitude+ot"])
def test_budgets_hold_for_generalised_pruning(method):
    models, x = pair(40)
    data = [torch.randn(50, 10)]
    assert pf.fuse(models, x, budget=1.2, method=method, data=data).count.ratio <= 1.2
    pruned = pf.prune(models[0], x, budget=0.4, method=method, data=data)
    assert 0.25 < pruned.count.ratio <= 0.4


@pytest.mark.parametrize("method", ["cluster", "interpolate", "magnitude"])
def test_generalised_pruning_may_narrow_some_spaces_to_widen_others(method):
    """Three channels in four of the first space are next to nothing."""
    models, x = pair()
    with torch.no_grad():
        for parameter in (p for m in models for p in m[0].parameters()):
            parameter[3:] *= 1e-3
    result = pf.fuse(models, x, budget=1.0, method=method, data=[torch.randn(64, *x.shape[1:])])
    assert result.count.ratio <= 1.0
    assert result.recipe.alpha["0"] < 0 < max(result.recipe.alpha.values())


@pytest.mark.parametrize("method", ["cluster", "interpolate"])
def test_twins_at_the_size_of_one_are_that_one(method):
    """The path of a space has no loss from one model's width on, so that no width is given for another."""
    models, x = pair()
    data = [torch.randn(64, *x.shape[1:])]
    result = pf.fuse([models[0], models[0]], x, budget=1.0, method=method, data=data, norm="recalibrate")
    assert set(result.recipe.alpha.values()) == {0.0}
    with torch.no_grad():
        torch.testing.assert_close(result.model(x), models[0](x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["cluster", "interpolate", "zip", "magnitude"])
def test_alpha_below_zero_is_smaller_than_one_model(method):
    models, x = pair()
    result = pf.fuse(models, x, alpha=-0.5, method=method)
    assert {s.width for s in result.layout.values() if s.kind == "elastic"} == {6, 8}
    assert pf.fuse(models, x, budget=0.6, method=method).count.ratio <= 0.6


def size_ratio(stopwatch, other):
    return np.divide(*(sum(p.numel() for p in m.parameters()) for m in (other, stopwatch.model)))


@pytest.mark.parametrize("method", ["partial-ot", "magnitude"])
@pytest.mark.parametrize("factor", [lambda r: r, lambda r: 0.4 + 0.6 * r, lambda r: r**1.5])
def test_a_bound_on_latency_is_met_by_what_was_measured(factor, method, monkeypatch):
    """With a clock that goes by the parameters, so that the test does not depend on the machine."""
    monkeypatch.setattr(latency.Stopwatch, "ratio", lambda *given: factor(size_ratio(*given)))
    models, x = pair(40)
    result = pf.fuse(models, x, budget=pf.Budget(latency=1.5), method=method)
    assert result.latency.holds
    assert result.latency.ratio == factor(result.count.ratio)
    assert 1.35 < result.latency.ratio <= 1.5
    assert "within the budget of 1.5" in str(result.summary())
    assert pf.prune(models[0], x, budget=pf.Budget(latency=0.7), method="magnitude").latency.ratio <= 0.7


def test_a_bound_on_latency_never_allows_more_than_the_models_one_by_one(monkeypatch):
    monkeypatch.setattr(latency.Stopwatch, "ratio", size_ratio)
    models, x = pair(40)
    result = pf.fuse(models, x, budget=pf.Budget(latency=3.0))
    assert result.latency.ensemble == 2.0
    assert 1.7 < result.count.ratio <= 2.0, "the ensemble as one dense module is larger"
    assert "within the budget of 3; the models one by one take 2.00×" in str(result.summary())


def test_latency_is_measured_on_this_machine():
    models, x = pair(40)
    result = pf.fuse(models, x, budget=pf.Budget(latency=3.0))
    assert result.latency.bound == 3.0
    assert result.latency.ratio > 0


def test_a_bound_on_latency_that_no_result_meets_is_told(monkeypatch, caplog):
    """Fused networks that turn out slower than all that was measured of one model."""
    honest = itertools.chain([True] * (4 + latency.MIXED), itertools.repeat(False))  # the ensemble, and the widths
    monkeypatch.setattr(latency.Stopwatch, "ratio", lambda *given: size_ratio(*given) if next(honest) else 9.0)
    models, x = pair(20)
    with pytest.raises(pf.ShortfallError, match=r"SLOWER than the models one by one \(2.00×\).*allow_shortfall=True"):
        pf.fuse(models, x, budget=pf.Budget(latency=1.5))
    honest = itertools.chain([True] * (4 + latency.MIXED), itertools.repeat(False))
    result = pf.fuse(models, x, budget=pf.Budget(latency=1.5), allow_shortfall=True)
    assert not result.latency.holds
    assert "OVER the budget of 1.5" in str(result.summary())
    assert "OVER the budget of 1.5" in caplog.text
    assert "SLOWER than the models one by one (2.00×), and no faster size was found" in caplog.text
    with pytest.raises(OptionError, match="0.20 times the latency of one model is below the smallest result"):
        pf.fuse(models, x, budget=pf.Budget(latency=0.2))


def test_a_result_over_the_bound_that_is_faster_than_the_models_is_told_and_returned(monkeypatch, caplog):
    honest = itertools.chain([True] * (4 + latency.MIXED), itertools.repeat(False))
    monkeypatch.setattr(latency.Stopwatch, "ratio", lambda *given: size_ratio(*given) if next(honest) else 1.9)
    models, x = pair(20)
    result = pf.fuse(models, x, budget=pf.Budget(latency=1.5))
    assert result.latency.ratio == 1.9
    assert "OVER the budget of 1.5; the models one by one take 2.00×" in caplog.text


def test_bounds_of_every_kind_hold_together():
    models, x = pair(40)
    blueprint = pf.trace(models[-1], x)
    single = Structure(models[-1], blueprint, Inputs.of(x), 1).sizes({})
    bound = pf.Budget(params=1.5, dense=1.9, flops=1.6, channels=1.3)
    result = pf.fuse(models, x, budget=bound)
    supports = {s.name: support_of(result.plan[s.name].support()) for s in blueprint if s.kind == "elastic"}
    found = Structure(models[-1], blueprint, Inputs.of(x), 2).sizes(supports)
    assert found.fits(bound.limits(single))
    assert found.used(bound.limits(single)) > 0.9


def test_counts_and_ratios_mean_the_same():
    models, x = pair(40)
    size = sum(p.numel() for p in models[0].parameters())
    by_ratio = pf.fuse(models, x, budget=1.25)
    by_count = pf.fuse(models, x, budget=pf.Budget(dense=int(1.25 * size)))
    assert by_ratio.recipe.alpha == by_count.recipe.alpha


def test_three_models_and_unequal_widths():
    torch.manual_seed(0)
    models = [mlp(10, w, w, w, 5).eval() for w in (20, 30, 24)]
    result = pf.fuse(models, torch.randn(4, 10), budget=1.6)
    assert 1.4 < result.count.ratio <= 1.6


@pytest.mark.parametrize("count", [2, 3])
def test_the_order_of_the_models(count):
    """Two of equal widths share a budget alike in either order; of three, the order of all but the last makes none."""
    models, x = [ZOO["mlp"].model(seed) for seed in range(count)], ZOO["mlp"].inputs()
    found = pf.fuse(models, x, budget=1.4)
    other = pf.fuse([models[1], models[0], *models[2:]], x, budget=1.4)
    assert found.recipe.alpha == other.recipe.alpha
    assert found.count == other.count
    torch.testing.assert_close(found.model(x), other.model(x))


def test_a_larger_budget_loses_less():
    models, x = pair(40)
    budgets = [pf.Budget(params=b) for b in (1.0, 1.2, 1.5, 1.8, 2.0)]
    costs = [pf.fuse(models, x, budget=b, align="greedy").plan.cost for b in budgets]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0


def test_spaces_that_match_well_stay_fused():
    """A twin in the first layer, a stranger in the second: the budget goes to the second."""
    models, x = pair(30)
    with torch.no_grad():
        models[0][0].weight.copy_(models[1][0].weight)
        models[0][0].bias.copy_(models[1][0].bias)
    alphas = pf.fuse(models, x, budget=1.3).recipe.alpha
    assert alphas["0"] < min(alphas["2"], alphas["4"])


def test_allocation_is_close_to_the_best_there_is():
    """Against all combinations, with convex losses: no worse than the best by more than one step."""
    model, x = mlp(6, 8, 8, 4).eval(), torch.randn(2, 6)
    blueprint = pf.trace(model, x)
    structure = Structure(model, blueprint, Inputs.of(x), 2)
    names = [s.name for s in blueprint if s.kind == "elastic"]
    rng = np.random.default_rng(0)
    for _ in range(20):
        paths = {}
        for name in names:
            steps = np.sort(rng.random(8))[::-1]
            losses = np.append(np.cumsum(steps[::-1])[::-1], 0.0)
            supports = tuple({name: Support({1: k, 2: k, 3: 8 - k})} for k in range(9))
            paths[name,] = Path(tuple(k / 8 for k in range(9)), tuple(losses), supports)
        smallest, largest = (
            structure.sizes({n: s for p in paths.values() for n, s in p.supports[at].items()}) for at in (0, -1)
        )
        limits = Sizes(params=(smallest.params + largest.params) / 2)
        sizes = allocate(paths, structure, limits)

        def loss(at, paths=paths):
            return sum(paths[n,].losses[k] for n, k in zip(names, at, strict=True))

        found = tuple(paths[n,].fractions.index(sizes[n]) for n in names)
        fitting = [
            at
            for at in itertools.product(range(9), repeat=2)
            if structure.sizes({n: paths[n,].supports[k][n] for n, k in zip(names, at, strict=True)}).fits(limits)
        ]
        assert found in fitting
        assert loss(found) <= min(map(loss, fitting)) + 1.0


def random_paths(model, x, rng):
    """The structure of a model of two, and paths of its spaces with convex losses."""
    blueprint = pf.trace(model, x, check=False)
    paths = {}
    for space in (s for s in blueprint if s.kind == "elastic"):
        n = space.width
        losses = np.append(np.cumsum(np.sort(rng.random(n)) ** 2)[::-1], 0.0)
        supports = tuple({space.name: Support({1: k, 2: k, 3: n - k})} for k in range(n + 1))
        paths[space.name,] = Path(tuple(k / n for k in range(n + 1)), tuple(losses), supports)
    return Structure(model, blueprint, Inputs.of(x), 2), paths


def lost(paths, sizes):
    return sum(path.losses[path.nearest(sizes[name])] for (name,), path in paths.items())


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5])
def test_bounds_on_several_sizes_are_never_spent_worse_than_by_one_alpha(alpha):
    """In a convolutional network operations and parameters are in different layers. The sizes of one alpha are the
    bounds, with and without room to spare in one of them."""
    model, x = ZOO["vgg-bn"].model(0), ZOO["vgg-bn"].inputs()
    rng = np.random.default_rng(0)
    for room in (1.0, 3.0):
        structure, paths = random_paths(model, x, rng)
        uniform = {spaces: path.nearest(alpha) for spaces, path in paths.items()}
        size = structure.sizes({s: c for g, path in paths.items() for s, c in path.supports[uniform[g]].items()})
        together = sum(path.losses[uniform[g]] for g, path in paths.items())
        for limits in (
            Sizes(dense=size.dense, flops=room * size.flops),
            Sizes(dense=room * size.dense, flops=size.flops),
        ):
            found = allocate(paths, structure, limits)
            assert lost(paths, found) <= together + 1e-9
            used = {s: path.supports[path.nearest(found[s])][s] for (s,), path in paths.items()}
            assert structure.sizes(used).fits(limits)


def test_a_bound_with_room_to_spare_costs_nothing():
    """A bound that cannot be reached changes nothing: what is bounded besides is spent as if it were alone."""
    model, x = ZOO["vgg-bn"].model(0), ZOO["vgg-bn"].inputs()
    structure, paths = random_paths(model, x, np.random.default_rng(1))
    largest = structure.sizes({s: c for path in paths.values() for s, c in path.supports[-1].items()})
    alone = lost(paths, allocate(paths, structure, Sizes(flops=largest.flops / 2)))
    both = lost(paths, allocate(paths, structure, Sizes(flops=largest.flops / 2, dense=largest.dense)))
    assert both <= 1.02 * alone


def test_a_loss_counts_for_every_layer_that_reads_it():
    """A residual stream has more readers than the space within a block."""
    torch.manual_seed(0)
    models, x = [ResNet18(4).eval() for _ in range(2)], torch.randn(2, 3, 32, 32)
    blueprint = pf.trace(models[-1], x, check=False)
    assert _readers(blueprint, ("conv1",)) == 4
    assert _readers(blueprint, ("layers.0.0.conv1",)) == 1
    assert _readers(blueprint, ("conv1", "layers.0.0.conv1")) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: pf.fuse(m, x, budget=0.5), "below the smallest result.*generalised pruning"),
        (lambda m, x: pf.fuse(m, x, alpha=-0.2), "cannot go below one model's widths"),
        (lambda m, x: pf.fuse(m, x, alpha=-1.0, method="cluster"), "nothing is left"),
        (lambda m, x: pf.fuse(m, x, budget=1.3, alpha=0.2), "exclude each other"),
        (lambda m, x: pf.prune(m[0], x, budget=0.3, keep=0.2), "exclude each other"),
        (lambda m, x: pf.fuse(m, x, budget=1.3, method="average"), "fuses every channel"),
        (lambda m, x: pf.fuse(m, x, budget=-1.0), "dense=-1.0"),
        (lambda m, x: pf.fuse(m, x, budget=True), "dense=True"),
        (lambda m, x: pf.Budget(), "at least one of dense, params, flops, latency, channels"),
        (lambda m, x: pf.Budget(flops=float("nan")), "flops=nan"),
        (lambda m, x: pf.Budget(latency=100), "relative to one model"),
    ],
)
def test_mistakes_are_told(call, message):
    models, x = pair()
    with pytest.raises(OptionError, match=message):
        call(models, x)
