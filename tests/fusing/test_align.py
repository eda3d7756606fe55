"""Alignment: the descent goes down, the options do what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import partialfusion as pf
from partialfusion.features import TracedModel, WeightCosts
from partialfusion.fusing.align import Problem, fixed_point, greedy
from partialfusion.solvers import fused_count
from zoo import ZOO, Exhibit, error, mlp, permuted_twin, randomised


def problem(exhibit: Exhibit, alpha: float) -> Problem:
    a, b = exhibit.model(0), exhibit.model(1)
    blueprint = pf.trace(b, exhibit.inputs(), check=False)
    free = {s.name: alpha for s in blueprint if s.kind != "rigid"}
    share = {s.name: fused_count(s.width, alpha) / s.width if s.name in free else 1.0 for s in blueprint}
    weights = WeightCosts(TracedModel.of(a, blueprint), TracedModel.of(b, blueprint), share)
    return Problem(weights, {}, free, {s.name: (s.width, s.width) for s in blueprint})


@pytest.mark.parametrize("name", ["mlp", "vgg-bn", "resnet"])
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_every_solve_lowers_the_global_objective(name: str, alpha: float) -> None:
    task = problem(ZOO[name], alpha)
    assert task.weights is not None
    couplings = dict(greedy(task).couplings)
    last = task.weights.objective(couplings)
    for _ in range(3):
        for space in task.alphas:
            (couplings[space],) = task.solve([space], [task.cost(space, couplings)])
            now = task.weights.objective(couplings)
            assert now <= last + 1e-6
            last = now
    found = fixed_point(task)
    assert found.converged
    settled = dict(found.couplings)
    for space in task.alphas:
        (other,) = task.solve([space], [task.cost(space, settled)])
        changed = {**settled, space: other}
        assert task.weights.objective(changed) >= task.weights.objective(settled) - 1e-5


@pytest.mark.parametrize("name", ["mixer", "shared", "pre-activation"])
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_a_space_on_both_axes_of_a_weight_goes_down_too(name: str, alpha: float) -> None:
    task = problem(ZOO[name], alpha)
    assert task.weights is not None
    found = fixed_point(task)
    assert found.converged
    assert task.weights.objective(found.couplings) <= task.weights.objective(greedy(task).couplings) + 1e-6


def test_cost_is_the_share_of_the_objective_that_depends_on_the_space() -> None:
    """Swapping two matches changes the objective by what the cost says."""
    task = problem(ZOO["mlp"], 0.0)
    assert task.weights is not None
    couplings = dict(greedy(task).couplings)
    space = list(task.alphas)[1]
    cost, before = task.cost(space, couplings), couplings[space]
    swapped = before.cols.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    after = type(before).of_pairs(before.rows, swapped, before.fused)
    gain = cost[before.rows, swapped].sum() - cost[before.rows, before.cols].sum()
    actual = task.weights.objective({**couplings, space: after}) - task.weights.objective(couplings)
    assert actual == pytest.approx(gain, rel=1e-3)


def test_permutation_is_git_rebasins_objective() -> None:
    """Σ ‖P A Pᵀ − B‖² over all parameters, biases too, at a fixed point of exhaustive single-space solves."""
    a, b = randomised(mlp(6), 0), randomised(mlp(6), 1)
    x = torch.randn(2, 10)
    fused = pf.fuse([a, b], x, method="permutation")
    names = [s.name for s in fused.blueprint if s.kind == "elastic"]

    def order(space: str) -> np.ndarray:
        ours, theirs = fused.plan[space].pairs
        place = dict(zip(theirs.target, theirs.source, strict=True))
        found = np.empty(ours.sources, int)
        found[[place[t] for t in ours.target]] = ours.source
        return found

    orders = [np.arange(10), *(order(s) for s in names), np.arange(5)]
    linear = [(m, k) for m, k in zip(a, b, strict=True) if isinstance(m, nn.Linear)]

    def gap(orders: list[np.ndarray]) -> float:
        total = 0.0
        for k, (ours, theirs) in enumerate(linear):
            w = ours.weight[orders[k + 1]][:, orders[k]]
            shift = ours.bias[orders[k + 1]] - theirs.bias
            total += ((w - theirs.weight).square().sum() + shift.square().sum()).item()
        return total

    supported_entries = gap(orders)
    assert supported_entries < gap([np.arange(len(o)) for o in orders])
    for k in range(1, len(orders) - 1):
        for i in range(len(orders[k])):
            for j in range(i):
                other = orders[k].copy()
                other[[i, j]] = other[[j, i]]
                assert gap([*orders[:k], other, *orders[k + 1 :]]) >= supported_entries - 1e-4


def test_ot_and_permutation_agree_with_partial_ot_at_alpha_zero() -> None:
    exhibit = ZOO["resnet"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    a, b = pf.fuse(models, x, method="ot"), pf.fuse(models, x, alpha=0.0)
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))


def test_alpha_per_space() -> None:
    exhibit = ZOO["resnet"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    fused = pf.fuse(models, x, alpha={"layer1.0.*": 1.0, "layer1.*": 0.5, "conv1": 0.25})
    widths = {name: fused.plan[name].width for name in ("layer1.0.conv1", "layer1.1.conv1", "conv1", "layer2.0.conv1")}
    assert widths == {"layer1.0.conv1": 16, "layer1.1.conv1": 12, "conv1": 10, "layer2.0.conv1": 16}
    whole = pf.fuse(models, x, method="ot", alpha={"layer1.*": 1.0})
    assert whole.plan["layer1.0.conv1"].isolated == (8, 8)
    assert error(pf.fuse([models[0]] * 2, x, alpha={"layer1.*": 1.0}).model(x), models[0](x)) < 1e-5


def test_isolated_neighbours_still_inform_the_matching() -> None:
    """A space between two that are wholly isolated is matched by what corresponds in them."""
    model, x = randomised(mlp(), 0), torch.randn(4, 10)
    twin = permuted_twin(model, x, 1)
    fused = pf.fuse([twin, model], x, alpha={"0": 1.0, "5": 1.0, "2": 0.0})
    assert error(fused.model(x), model(x)) < 1e-5


def test_greedy_and_fixed_point_report_their_sweeps() -> None:
    exhibit = ZOO["mlp"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    assert pf.fuse(models, x, align="greedy").plan.sweeps == 1
    summary = pf.fuse(models, x).summary()
    assert summary.converged
    assert summary.sweeps > 1
    assert "converged after" in str(summary)
