"""What "auto" chooses: the method by data and sizes, and refit with it."""

from __future__ import annotations

import pytest
import torch

import partialfusion as pf
from partialfusion.errors import DataError
from partialfusion_study.networks import mlp


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    return [mlp(6, 8, 8, 4, bias=True).eval() for _ in range(2)], torch.randn(40, 6)


def chosen(result):
    return result.recipe.method, result.recipe.refit > 0


def test_without_data_it_is_the_method_of_the_paper(pair):
    models, x = pair
    assert chosen(pf.fuse(models, x, method="auto")) == ("partial-ot", False)
    assert chosen(pf.prune(models[0], x, method="auto")) == ("cluster", False)


def test_with_data_it_interpolates_and_refits(pair):
    models, x = pair
    for result in (pf.fuse(models, x, data=[x], method="auto"), pf.prune(models[0], x, data=[x], method="auto")):
        assert chosen(result) == ("interpolate", True)


def test_small_files_and_blocks_are_clustered_and_keep_their_zeros(pair):
    models, x = pair
    result = pf.fuse(models, x, data=[x], method="auto", budget=pf.Budget(params=1.3))
    assert chosen(result) == ("cluster", True)
    assert result.recipe.zeros == "kept"
    assert result.count.effective_ratio <= 1.3


@pytest.mark.parametrize("method", ["partial-ot", "permutation", "cluster", "interpolate"])
def test_a_method_by_name_is_that_method_alone(pair, method):
    models, x = pair
    assert chosen(pf.fuse(models, x, data=[x], method=method)) == (method, False)
    assert chosen(pf.fuse(models, x, data=[x], method=method, refit=True)) == (method, True)


@pytest.mark.parametrize("option", [{"features": "both"}, {"features": "weights"}, {"site": "pre"}])
def test_options_that_interpolation_cannot_follow_choose_another_method(pair, option):
    models, x = pair
    assert chosen(pf.fuse(models, x, data=[x], method="auto", **option)) == ("partial-ot", True)
    assert chosen(pf.prune(models[0], x, data=[x], method="auto", **option)) == ("cluster", True)


def test_refit_can_be_left_out_or_asked_for(pair):
    models, x = pair
    assert chosen(pf.fuse(models, x, data=[x], method="auto", refit=False)) == ("interpolate", False)
    with pytest.raises(DataError, match="refit needs data"):
        pf.fuse(models, x, refit=True)


def test_the_ends_stay_exact(pair):
    models, x = pair
    with torch.no_grad():
        whole, first = (
            pf.fuse(models, x, data=[x], method="auto", alpha=1.0),
            pf.fuse(models, x, data=[x], method="auto", alpha=0.5, mix=[1, 0]),
        )
        twin = pf.fuse([models[0], models[0]], x, data=[x], method="auto", alpha=0.0)
        torch.testing.assert_close(whole.model(x), (models[0](x) + models[1](x)) / 2)
        torch.testing.assert_close(first.model(x), models[0](x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(twin.model(x), models[0](x), rtol=1e-4, atol=1e-5)


def test_a_frontier_names_the_method(pair):
    models, x = pair
    methods = ["auto", "interpolate"]  # with refit, and without
    found = pf.frontier(models, x, evaluate=lambda m: float(m(x).sum()), alphas=[0.0], methods=methods, data=[x])
    assert {p.method for p in found.points if p.kind == "fused"} == {"auto (interpolate)", "interpolate"}
