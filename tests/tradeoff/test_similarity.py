"""Costs and similarities of channels: what the matching paid, and what can be computed from the tensors by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import ZOO, permuted_twin


def frontier(models: list[nn.Module], x: Tensor, **options: object) -> pf.Frontier:
    return pf.frontier(models, x, evaluate=lambda m: 0.0, progress=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mlp", "vgg-bn", "resnet", "grouped"])
@pytest.mark.parametrize("features", ["weights", "activations", "both"])
def test_pair_costs_sum_to_what_the_alignment_paid(name: str, features: str) -> None:
    """Up to the gain below which the alignment leaves a space as it is.

    Where a space is on several axes of one parameter, as in "shared", the alignment knows the slope of the cost alone.
    """
    exhibit = ZOO[name]
    models, x = [exhibit.model(seed) for seed in (0, 1)], exhibit.inputs()
    data = None if features == "weights" else [exhibit.inputs(seed) for seed in range(1, 5)]
    found = frontier(models, x, alphas=(0, 0.4), data=data, features=features)
    for point in (p for p in found.points if p.kind == "fused"):
        for space in point.spaces:
            if space.summary.kind == "rigid":
                assert not space.similarity.costs.size
                continue
            assert len(space.similarity.costs) == len(space.similarity.fused) == space.summary.fused
            assert len(space.similarity.isolated) == space.summary.isolated[0]
            assert space.similarity.costs.sum() == pytest.approx(space.summary.cost, rel=2e-3)


def test_costs_of_three_models_sum_over_the_pairs_with_the_last(models: list[nn.Module], x: Tensor) -> None:
    point = frontier(models, x, alphas=(0.4,)).points[-1]
    for space in point.spaces[:-1]:
        assert space.similarity.costs.sum() == pytest.approx(space.summary.cost, rel=2e-3)
        assert len(space.similarity.isolated) == sum(space.summary.isolated[:2])


def test_a_permuted_twin_is_alike_throughout() -> None:
    model, x = ZOO["mlp"].model(0), ZOO["mlp"].inputs()
    found = frontier([permuted_twin(model, x, 3), model], x, alphas=(0, 0.4))
    for point in found.points[-2:]:
        for space in point.spaces[:-1]:
            assert np.allclose(space.similarity.fused, 1.0, atol=1e-5)
            assert np.allclose(space.similarity.isolated, 1.0, atol=1e-5)
            assert np.allclose(space.similarity.costs, 0.0, atol=1e-6)


def test_similarities_by_weights_are_cosines(models: list[nn.Module], x: Tensor) -> None:
    """The first layer reads the input as it is, the last writes the output as it is: one hidden layer says all."""

    def net(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()

    with torch.random.fork_rng():
        a, b = net(0), net(1)
    inputs = torch.ones(2, 4)
    point = frontier([a, b], inputs, alphas=(0.5,)).points[-1]
    pairs = pf.fuse([a, b], inputs, alpha=0.5).plan["0"].pairs
    ours = dict(zip(pairs[0].target.tolist(), pairs[0].source.tolist(), strict=True))
    theirs = dict(zip(pairs[1].target.tolist(), pairs[1].source.tolist(), strict=True))
    rows = [torch.cat([m[0].weight, m[0].bias[:, None]], 1).detach().double() for m in (a, b)]
    columns = [m[2].weight.T.detach().double() for m in (a, b)]
    expected = []
    for target in ours.keys() & theirs.keys():
        i, j = ours[target], theirs[target]
        inner = [0.0, 0.0, 0.0]
        for x_, y_ in (rows, columns):
            scale = float(torch.cat([x_, y_]).square().sum(1).mean())
            parts = (x_[i] @ y_[j], x_[i] @ x_[i], y_[j] @ y_[j])
            inner = [total + float(part) / scale for total, part in zip(inner, parts, strict=True)]
        expected.append(inner[0] / (inner[1] * inner[2]) ** 0.5)
    assert np.allclose(np.sort(point.spaces[0].similarity.fused), np.sort(expected), atol=1e-6)


def test_similarities_by_activations_are_correlations() -> None:
    exhibit = ZOO["mlp"]
    models, x = [exhibit.model(seed) for seed in (0, 1)], exhibit.inputs()
    data = [exhibit.inputs(seed) for seed in range(1, 9)]
    point = frontier(models, x, alphas=(0.4,), data=data).points[-1]
    pairs = pf.fuse(models, x, alpha=0.4, data=data).plan["0"].pairs
    shared = np.intersect1d(pairs[0].target, pairs[1].target)
    with torch.no_grad():
        a, b = (torch.cat([m[0](batch) for batch in data]).double().numpy() for m in models)
    sources = [{int(t): int(s) for t, s in zip(p.target, p.source, strict=True)} for p in pairs]
    expected = [np.corrcoef(a[:, sources[0][t]], b[:, sources[1][t]])[0, 1] for t in shared.tolist()]
    assert np.allclose(np.sort(point.spaces[0].similarity.fused), np.sort(expected), atol=1e-5)
    assert np.allclose(np.sort(point.spaces[0].similarity.costs), np.sort(1 - np.asarray(expected)), atol=1e-5)


def test_where_nothing_is_matched_nothing_is_told(two: pf.Frontier) -> None:
    for point in two.points:
        for space in point.spaces:
            sizes = [v.size for v in (space.similarity.costs, space.similarity.fused, space.similarity.isolated)]
            if point.alpha == 1:
                assert sizes == [0, 0, 0]
            elif point.method.startswith("ends"):
                assert sizes[0] == sizes[2] == 0


def test_details_can_be_left_out(models: list[nn.Module], x: Tensor) -> None:
    point = frontier(models[:2], x, alphas=(0.4,), details=False).points[-1]
    assert not any(s.similarity.fused.size for s in point.spaces)
