"""Channels that count by their importance in optimal transport: POT's couplings, and what a fusion makes of them."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from torch import nn

import partialfusion as pf
from partialfusion.errors import OptionError
from partialfusion.solvers import couple
from zoo import ZOO, error, permuted_twin

WEIGHTED = ("incoming", "outgoing")


def problem(n: int, m: int, seed: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 4)), rng.normal(size=(m, 4))
    a, b = rng.uniform(0.2, 2.0, n), rng.uniform(0.2, 2.0, m)
    return ((x[:, None] - y[None]) ** 2).sum(-1), (a / a.sum(), b / b.sum())


@pytest.mark.parametrize(("n", "m"), [(6, 6), (9, 7), (20, 20)])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6])
def test_split_couplings_cost_what_pots_partial_transport_costs(n: int, m: int, alpha: float) -> None:
    cost, masses = problem(n, m, n + m)
    found = couple(cost, alpha, masses=masses, split=True)
    rows, cols, mass = found.fused_part()
    best = ot.partial.partial_wasserstein(*masses, cost, m=min(1 - alpha, *(side.sum() for side in masses)))
    assert mass.sum() == pytest.approx(1 - alpha)
    assert (mass * cost[rows, cols]).sum() == pytest.approx((best * cost).sum(), rel=1e-7)
    np.testing.assert_array_less(np.bincount(rows, mass, n), masses[0] + 1e-9)
    np.testing.assert_array_less(np.bincount(cols, mass, m), masses[1] + 1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5])
def test_whole_couplings_have_the_size_of_alpha_and_are_optimal_among_their_channels(alpha: float) -> None:
    cost, (a, b) = problem(12, 12, 3)
    found = couple(cost, alpha, masses=(a, b))
    ours, theirs = found.fused_fraction()
    assert set(ours) | set(theirs) <= {0.0, 1.0}
    fused = 12 - round(alpha * 12)
    assert (ours == 1).sum() == (theirs == 1).sum() == fused
    rows, cols = np.flatnonzero(ours), np.flatnonzero(theirs)
    taken = b[cols] * a[rows].sum() / b[cols].sum()
    block = cost[np.ix_(rows, cols)]
    r, c, mass = found.fused_part()
    assert (mass * cost[r, c]).sum() == pytest.approx((ot.emd(a[rows], taken, block) * block).sum(), rel=1e-7)


def test_equal_masses_given_as_such_couple_as_cheaply_as_an_assignment() -> None:
    cost, _ = problem(10, 10, 0)
    uniform = np.full(10, 0.1)
    for alpha in (0.0, 0.4):
        rows, cols, mass = couple(cost, alpha).fused_part()
        r, c, weighted = couple(cost, alpha, masses=(uniform, uniform)).fused_part()
        assert (weighted * cost[r, c]).sum() == pytest.approx((mass * cost[rows, cols]).sum())


@pytest.mark.parametrize("masses", WEIGHTED)
@pytest.mark.parametrize("name", ["mlp", "vgg-bn", "resnet"])
def test_a_permuted_twin_fused_is_itself(name: str, masses: str) -> None:
    exhibit = ZOO[name]
    x, model = exhibit.inputs(), exhibit.model(0)
    twin = permuted_twin(model, x)
    for alpha in (0.0, 0.4):
        result = pf.fuse([twin, model], x, alpha=alpha, masses=masses)
        assert error(result.model(x), model(x)) < 1e-4


@pytest.mark.parametrize("masses", WEIGHTED)
def test_alpha_1_is_the_ensemble_and_widths_are_those_of_alpha(masses: str) -> None:
    x = ZOO["mlp"].inputs()
    a, b = ZOO["mlp"].model(0), ZOO["mlp"].model(1)
    whole = pf.fuse([a, b], x, alpha=1.0, masses=masses)
    assert error(whole.model(x), (a(x) + b(x)) / 2) < 1e-5
    plain, weighted = (pf.fuse([a, b], x, alpha=0.5, round_to=1, masses=m) for m in ("equal", masses))
    assert plain.count.dense == weighted.count.dense
    assert weighted.recipe.masses == masses
    assert error(weighted.model(x), plain.model(x)) > 1e-3


def test_a_channel_that_counts_little_is_absorbed_by_the_nearest() -> None:
    """One channel of A that computes nothing leaves the others one to one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    dead = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    dead.load_state_dict(model.state_dict())
    with torch.no_grad():
        dead[0].weight[2] = 0
        dead[0].bias[2] = 0
    x = torch.randn(8, 5)
    result = pf.fuse([dead, dead], x, alpha=0.0, masses="incoming")
    assert error(result.model(x), dead(x)) < 1e-5


def test_what_masses_are_not_for_is_refused() -> None:
    x, models = ZOO["mlp"].inputs(), [ZOO["mlp"].model(k) for k in range(2)]
    with pytest.raises(OptionError, match="ot and partial-ot"):
        pf.fuse(models, x, masses="incoming", method="cluster")
    with pytest.raises(OptionError, match="not known"):
        pf.fuse(models, x, masses="heavy")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="needs a given alpha"):
        pf.fuse(models, x, masses="outgoing", budget=1.2)
