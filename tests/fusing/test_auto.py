"""What "auto" chooses: the method by data and sizes, and refit with it."""

from __future__ import annotations

import pytest
import torch

import partialfusion as pf
from partialfusion.errors import DataError
from partialfusion_study.networks import mlp
from zoo import STIFF


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


@pytest.mark.parametrize("single", [False, True])
def test_with_data_it_is_the_nearest_to_the_models_of_two_refitted_methods(pair, single):
    models, x = pair

    def made(method, **options):
        if single:
            return pf.prune(models[0], x, data=[x[:25], x[25:]], method=method, keep=0.5, **options)
        return pf.fuse(models, x, data=[x[:25], x[25:]], method=method, alpha=0.25, mix=0.3, **options)

    with torch.no_grad():
        wanted = models[0](x) if single else 0.3 * models[0](x) + 0.7 * models[1](x)
        results = {method: made(method, refit=True) for method in ("interpolate", "cluster")}
        apart = {method: float((r.model(x) - wanted).square().sum()) for method, r in results.items()}
        found = made("auto")
        best = min(apart, key=apart.__getitem__)
        assert chosen(found) == (best, True)
        torch.testing.assert_close(found.model(x), results[best].model(x))
    ratio = apart["cluster"] / apart["interpolate"]
    assert found.compared["cluster"] / found.compared["interpolate"] == pytest.approx(ratio, rel=1e-3)
    assert "nearest to the models" in str(found.summary())
    assert found.recipe.otherwise is None


def test_transformers_are_interpolated():
    exhibit = STIFF["transformer"]
    found = pf.fuse([exhibit.model(0), exhibit.model(1)], data=[exhibit.inputs()], alpha=0.0, method="auto")
    assert chosen(found) == ("interpolate", True)
    assert not found.compared


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
    methods = ["partial-ot", "auto", "interpolate"]  # the second with refit
    found = pf.frontier(models, x, evaluate=lambda m: float(m(x).sum()), alphas=[0.0], methods=methods, data=[x])
    assert {p.method for p in found.points if p.kind == "fused"} == set(methods)
    assert not found.failed
