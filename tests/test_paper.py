"""The paper's own matrices, written out, against the library."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import partialfusion as pf
from zoo import ZOO, randomised


def paper_kernels(reduction: pf.Reduction, lam: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K^{E→S}, K^{S→E} of the appendix "Partial fusion as generalized pruning of the ensemble".

    Blocks of E: I^A, F^A, F^B, I^B; blocks of S: I^A, F^B, I^B. Also returns the order of E's channels in which these
    blocks are contiguous. λ is the weight of A.
    """
    ours, theirs = reduction.pairs
    shared = set(ours.target) & set(theirs.target)
    iso_a = [s for t, s in zip(ours.target, ours.source, strict=True) if t not in shared]
    iso_b = [s for t, s in zip(theirs.target, theirs.source, strict=True) if t not in shared]
    fused_b = {t: s for t, s in zip(theirs.target, theirs.source, strict=True) if t in shared}
    fused_a = {t: s for t, s in zip(ours.target, ours.source, strict=True) if t in shared}
    order_b = [fused_b[t] for t in sorted(shared)]
    order_a = sorted(fused_a.values())
    match = np.zeros((len(order_b), len(order_a)))  # K^{A→B}, a permutation of the fused channels
    for t in shared:
        match[order_b.index(fused_b[t]), order_a.index(fused_a[t])] = 1.0
    i, f, k = len(iso_a), len(shared), len(iso_b)
    one, zero = np.eye, np.zeros
    to_small = np.block(
        [
            [one(i), zero((i, f)), zero((i, f)), zero((i, k))],
            [zero((f, i)), lam * match, (1 - lam) * one(f), zero((f, k))],
            [zero((k, i)), zero((k, f)), zero((k, f)), one(k)],
        ]
    )
    to_large = np.block(
        [
            [one(i), zero((i, f)), zero((i, k))],
            [zero((f, i)), match.T, zero((f, k))],
            [zero((f, i)), one(f), zero((f, k))],
            [zero((k, i)), zero((k, f)), one(k)],
        ]
    )
    n = ours.sources
    return (
        to_small,
        to_large,
        np.array([*iso_a, *order_a, *(n + s for s in order_b), *(n + s for s in iso_b)]),
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("convention", ["value", "mass"])
def test_partial_fusion_is_generalised_pruning_of_the_ensemble(alpha: float, convention: str) -> None:
    sizes, lam = (6, 10, 8, 4), 0.3

    def build(seed: int) -> nn.Module:
        layers = [nn.Linear(n, m, bias=False) for n, m in pairwise(sizes)]
        return randomised(nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2]), seed)

    a, b = build(0), build(1)
    fused = pf.fuse([a, b], torch.randn(2, 6), alpha=alpha, mix=(lam, 1 - lam), convention=convention)
    weights = [(p.detach().numpy(), q.detach().numpy()) for p, q in zip(a.parameters(), b.parameters(), strict=True)]
    hidden = [paper_kernels(fused.plan[s.name], lam) for s in fused.blueprint if s.kind == "elastic"]
    # Both models read the same input; the outputs are mixed.
    first = (None, np.vstack([np.eye(6), np.eye(6)]), np.arange(12))
    last = (np.hstack([lam * np.eye(4), (1 - lam) * np.eye(4)]), None, np.arange(8))
    kernels = [first, *hidden, last]
    for layer, ((w_a, w_b), found) in enumerate(zip(weights, fused.model.parameters(), strict=True)):
        (_, to_large, inner), (to_small, _, outer) = kernels[layer], kernels[layer + 1]
        ensemble = np.block([[w_a, np.zeros((len(w_a), w_b.shape[1]))], [np.zeros((len(w_b), w_a.shape[1])), w_b]])
        expected = to_small @ ensemble[np.ix_(outer, inner)] @ to_large
        assert found.detach().numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.4, 0.5, 0.8, 1.0])
def test_effective_parameters_of_an_inner_layer(alpha: float) -> None:
    """(1 − α² + 2α)·n·m, and the zero blocks are zero."""
    n = 20

    def build(seed: int) -> nn.Module:
        sizes = ((7, n), (n, n), (n, 3))
        return randomised(nn.Sequential(*(nn.Linear(i, o, bias=False) for i, o in sizes)), seed)

    a, b = build(0), build(1)
    fused = pf.fuse([a, b], torch.randn(2, 7), alpha=alpha)
    expected = (1 - alpha**2 + 2 * alpha) * n * n
    width = round((1 + alpha) * n)
    assert fused.count.effective == pytest.approx(expected + 7 * width + 3 * width)
    assert fused.count.dense == width * width + 10 * width
    inner = list(fused.model.parameters())[1]
    assert int((inner != 0).sum()) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["vgg-bn", "resnet", "mixer", "shared"])
def test_effective_parameters_are_those_that_are_not_zero(name: str) -> None:
    """With random sources an entry is zero only where no model fills it."""
    models, x = [ZOO[name].model(s) for s in range(3)], ZOO[name].inputs()
    for alpha in (0.0, 0.35, 1.0):
        fused = pf.fuse(models, x, alpha=alpha)
        assert fused.count.effective == sum(int((p != 0).sum()) for p in fused.model.parameters())
        assert fused.count.dense == sum(p.numel() for p in fused.model.parameters())
        assert fused.count.single == sum(p.numel() for p in models[-1].parameters())
