"""mix="auto": the best shares are found on one template, and what was measured is reported."""

from __future__ import annotations

import itertools
import logging
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import partialfusion as pf
from partialfusion.core import progress
from partialfusion.core.inputs import Inputs
from partialfusion.core.progress import silent
from partialfusion.fusing.mix_search import FINEST, around, coarse
from partialfusion.fusing.options import resolve
from partialfusion.fusing.pipeline import Pipeline, Reduced
from partialfusion.kernels import Plan
from zoo import ZOO, Exhibit, identical, snapshot

zoo = pytest.mark.parametrize("exhibit", ZOO.values(), ids=ZOO.keys())
EQUAL = (0.5, 0.5)


def same_plans(a: Plan, b: Plan) -> None:
    assert a.keys() == b.keys()
    assert a.mix == b.mix
    for space in a:
        for one, other in zip(a[space].pairs, b[space].pairs, strict=True):
            np.testing.assert_allclose(one.write_matrix(), other.write_matrix(), atol=1e-12)
            np.testing.assert_allclose(one.read_matrix(), other.read_matrix(), atol=1e-12)


def reduced(exhibit: Exhibit, models: list[nn.Module], **options: Any) -> tuple[Pipeline, Reduced]:
    inputs = Inputs.of(exhibit.inputs())
    asked = {"method": "partial-ot", "alpha": 0.4, "convention": "value", **options}
    equal = (1 / len(models),) * len(models)
    chosen = {"features": "weights", "site": "auto", "align": "fixed-point", "norm": "analytic", "refit": False}
    recipe = resolve(keep=None, mix=equal, seed=0, has_data=False, **asked, **chosen)
    made = Pipeline(models, inputs, exhibit.blueprint, None, silent, check=True)
    return made, made.reduce(recipe)


def towards(target: tuple[float, ...], models: list[nn.Module], x: Tensor) -> Any:
    """A measure that is highest where the outputs are mixed so."""
    with torch.no_grad():
        wanted = sum(w * m(x) for w, m in zip(target, models, strict=True))
    return lambda model: -float((model(x) - wanted).detach().square().sum())


# One template for every mix


@zoo
@pytest.mark.parametrize("convention", ["value", "mass"])
@pytest.mark.parametrize("mix", [(0.2, 0.8), (1.0, 0.0), (0.0, 1.0)])
def test_another_mix_of_a_template_is_the_fusion_with_that_mix(exhibit: Exhibit, convention: str, mix: Any) -> None:
    models, x = [exhibit.model(seed) for seed in (0, 1)], exhibit.inputs()
    made, found = reduced(exhibit, models, convention=convention)
    again = made.remix(found, mix)
    options = {"convention": convention, "norm": "analytic", "blueprint": exhibit.blueprint}
    expected = pf.fuse(models, x, alpha=0.4, mix=mix, **options)
    same_plans(again.plan, expected.plan)
    assert identical(snapshot(expected.model), again.model)
    assert again.recipe.mix == mix


@pytest.mark.parametrize("convention", ["value", "mass"])
def test_three_models_and_another_mix(convention: str) -> None:
    models, x = [ZOO["resnet"].model(seed) for seed in range(3)], ZOO["resnet"].inputs()
    made, found = reduced(ZOO["resnet"], models, convention=convention)
    mix = (0.1, 0.3, 0.6)
    again = made.remix(found, mix)
    expected = pf.fuse(models, x, alpha=0.4, mix=mix, convention=convention, norm="analytic")
    same_plans(again.plan, expected.plan)


@pytest.mark.parametrize("method", ["cluster", "zip", "magnitude"])
@pytest.mark.parametrize("convention", ["value", "mass"])
def test_a_choice_for_another_mix_weighs_its_channels_so(method: str, convention: str) -> None:
    """Members stay; a target is the average over its members, each with its model's share."""
    models = [ZOO["mlp"].model(seed) for seed in (0, 1)]
    made, found = reduced(ZOO["mlp"], models, method=method, convention=convention)
    mix = (0.25, 0.75)
    before, after = found.fusion.plan, made.remix(found, mix).plan
    for space in (s.name for s in found.fusion.blueprint if s.kind == "elastic"):
        shares = np.concatenate(
            [(p.write_matrix() != 0) * w for p, w in zip(before[space].pairs, mix, strict=True)], axis=1
        )
        shares /= shares.sum(1, keepdims=True)
        write = np.concatenate([p.write_matrix() for p in after[space].pairs], axis=1)
        read = np.concatenate([p.read_matrix() for p in after[space].pairs], axis=0)
        averaged = write if convention == "value" else read.T
        np.testing.assert_allclose(averaged, shares, atol=1e-12)


# The search


@pytest.mark.parametrize("models", [2, 3, 4, 5])
def test_the_grid_is_of_mixes_and_steps_move_one_share(models: int) -> None:
    grid = coarse(models)
    assert len(set(grid)) == len(grid)
    assert {tuple(np.eye(models)[k]) for k in range(models)} <= set(grid)
    for mix in grid:
        assert min(mix) >= 0
        assert sum(mix) == pytest.approx(1, abs=1e-15)
        for other in around(mix, 0.1):
            moved = np.subtract(other, mix)
            assert min(other) >= 0
            assert sum(other) == pytest.approx(1, abs=1e-15)
            assert (np.abs(moved) > 1e-12).sum() == 2
            assert np.abs(moved).max() <= 0.1 + 1e-9


@pytest.mark.parametrize("target", [(0.37, 0.63), (0.0, 1.0), (1.0, 0.0), (0.5, 0.5), (0.915, 0.085)])
def test_the_best_share_of_two_is_found(target: tuple[float, float]) -> None:
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    result = pf.fuse(models, x, alpha=1, mix="auto", evaluate=towards(target, models, x))
    assert result.recipe.mix == result.mixing.mix
    assert abs(result.mixing.mix[0] - target[0]) <= FINEST / 2 + 1e-9
    assert len(result.mixing.points) <= 15


@pytest.mark.parametrize("target", [(0.2, 0.5, 0.3), (0.0, 0.1, 0.9), (1 / 3, 1 / 3, 1 / 3), (0.1, 0.2, 0.3, 0.4)])
def test_the_best_shares_of_several_are_found(target: tuple[float, ...]) -> None:
    models = [ZOO["mlp"].model(seed) for seed in range(len(target))]
    x = ZOO["mlp"].inputs()
    evaluate = towards(target, models, x)
    result = pf.fuse(models, x, alpha=1, mix="auto", evaluate=evaluate)
    scores = {p.mix: p.score for p in result.mixing.points}
    assert scores[result.mixing.mix] == max(scores.values())
    assert np.abs(np.subtract(result.mixing.mix, target)).max() <= 0.13
    assert evaluate(result.model) > evaluate(pf.fuse(models, x, alpha=1).model) or len(set(target)) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.3},
        {"alpha": 0.3, "convention": "mass"},
        {"budget": 1.3},
        {"method": "average"},
        {"alpha": {"layer1*": 0.5}, "align": "greedy"},
    ],
)
def test_the_result_is_the_fusion_with_the_mix_that_was_found(options: dict[str, Any]) -> None:
    models, x = [ZOO["resnet"].model(seed) for seed in (0, 1)], ZOO["resnet"].inputs()
    data = [ZOO["resnet"].inputs(seed) for seed in (1, 2)]
    before = [snapshot(m) for m in models]
    evaluate = towards((0.3, 0.7), models, x)
    options = {**options, "data": data, "blueprint": ZOO["resnet"].blueprint}
    result = pf.fuse(models, x, mix="auto", evaluate=evaluate, **options)
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))
    expected = pf.fuse(models, x, mix=result.mixing.mix, **options)
    assert identical(snapshot(expected.model), result.model)
    assert max(p.score for p in result.mixing.points) == evaluate(result.model)


def test_an_evaluation_in_training_mode_leaves_the_result_as_it_is() -> None:
    models, x = [ZOO["resnet"].model(seed) for seed in (0, 1)], ZOO["resnet"].inputs()
    expected = pf.fuse(models, x, alpha=0.3)

    def evaluate(model: nn.Module) -> float:
        model.train()(x)
        return 1.0

    result = pf.fuse(models, x, alpha=0.3, mix="auto", evaluate=evaluate)
    assert result.recipe.mix == EQUAL
    assert identical(snapshot(expected.model), result.model)


def test_nothing_is_matched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    matched = []
    original = Pipeline._template
    monkeypatch.setattr(Pipeline, "_template", lambda *args: matched.append(args) or original(*args))
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    for method in ("partial-ot", "cluster"):
        pf.fuse(models, x, method=method, mix="auto", evaluate=towards((0.3, 0.7), models, x))
    assert len(matched) == 2


def test_refitted_mixes_are_scored_as_they_are_returned() -> None:
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    data, evaluate = [ZOO["mlp"].inputs(seed) for seed in range(9)], towards((0.3, 0.7), models, x)
    result = pf.fuse(models, x, alpha=0.2, mix="auto", evaluate=evaluate, data=data, refit=True)
    assert result.recipe.refit > 0
    assert max(p.score for p in result.mixing.points) == evaluate(result.model)


@pytest.mark.parametrize("count", [2, 3])
def test_the_order_of_the_models(count: int) -> None:
    """Nothing depends on it with two models; with three, which is last does, the order of the others does not."""
    models, x = [ZOO["mlp"].model(seed) for seed in range(count)], ZOO["mlp"].inputs()
    order = [1, 0, *range(2, count)]
    found = pf.fuse(models, x, alpha=0.4, mix="auto", evaluate=towards((0.3, 0.7, 0.0)[:count], models, x)).mixing
    turned = [models[k] for k in order]
    evaluate = towards(tuple((0.3, 0.7, 0.0)[k] for k in order), turned, x)
    other = pf.fuse(turned, x, alpha=0.4, mix="auto", evaluate=evaluate).mixing
    assert tuple(found.mix[k] for k in order) == pytest.approx(other.mix)
    scores = {tuple(round(p.mix[k], 6) for k in order): p.score for p in found.points}
    assert scores == pytest.approx({tuple(round(m, 6) for m in p.mix): p.score for p in other.points}, rel=1e-4)


# How sure it is


def noisy(samples: int, peak: float, gain: float) -> Any:
    """Scores of samples around a parabola in the output's share of the first model, each with noise of its own."""
    noise = torch.randn(samples, generator=torch.Generator().manual_seed(3))
    slope = torch.randn(samples, generator=torch.Generator().manual_seed(4))

    def evaluate(model: nn.Module) -> Tensor:
        share = float(model(torch.ones(1, 1)).detach())
        return noise + slope * share - gain * (share - peak) ** 2

    return evaluate


def one_or_zero() -> list[nn.Module]:
    """Two networks whose outputs are one and zero: the ensemble tells the share of the first."""
    models = []
    for value in (1.0, 0.0):
        model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
        with torch.no_grad():
            model[2].weight.zero_()
            model[2].bias.fill_(value)
        models.append(model)
    return models


def test_many_samples_tell_and_few_do_not(caplog: pytest.LogCaptureFixture) -> None:
    models, x = one_or_zero(), torch.ones(1, 1)
    with caplog.at_level(logging.WARNING, "partialfusion"):
        sure = pf.fuse(models, x, alpha=1, mix="auto", evaluate=noisy(200_000, 0.8, 1.0)).mixing
    assert sure.clear
    assert abs(sure.mix[0] - 0.8) <= 0.05
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "partialfusion"):
        unsure = pf.fuse(models, x, alpha=1, mix="auto", evaluate=noisy(20, 0.8, 0.01)).mixing
    assert unsure.clear is False
    assert "20 samples do not distinguish the mixes" in caplog.text
    assert "do not distinguish" in str(unsure)


def test_two_peaks_are_told_from_what_is_between_them() -> None:
    """Networks that fuse badly: either of them alone is as good, and every sample says that the middle is worse."""
    noise = torch.randn(500, generator=torch.Generator().manual_seed(3))

    def evaluate(model: nn.Module) -> Tensor:
        share = float(model(torch.ones(1, 1)).detach())
        return noise * (1 + 0.1 * share) + 10 * (share - 0.5) ** 2

    mixing = pf.fuse(one_or_zero(), torch.ones(1, 1), alpha=1, mix="auto", evaluate=evaluate).mixing
    assert {p.mix for p in mixing.points if p.alike} >= {(0.0, 1.0), (1.0, 0.0)}
    assert mixing.clear
    assert mixing.alike <= 4 / 11


def test_how_far_behind_and_how_sure_that_is() -> None:
    models, x = one_or_zero(), torch.ones(1, 1)
    result = pf.fuse(models, x, alpha=1, mix="auto", evaluate=noisy(40, 0.8, 0.01))
    found, blueprint = result.mixing, result.blueprint
    samples = noisy(40, 0.8, 0.01)
    best = samples(pf.fuse(models, x, alpha=1, mix=found.mix, blueprint=blueprint).model)
    for point in found.points[::4]:
        own = samples(pf.fuse(models, x, alpha=1, mix=point.mix, blueprint=blueprint).model)
        apart = (best - own).double().numpy()
        assert point.behind == pytest.approx(apart.mean(), abs=1e-6)
        assert point.error == pytest.approx(apart.std(ddof=1) / np.sqrt(40), abs=1e-6)


def test_labelled_batches_score_by_accuracy() -> None:
    exhibit = ZOO["mlp"]
    models, x = [exhibit.model(seed) for seed in (0, 1)], exhibit.inputs()
    batches = [(exhibit.inputs(seed), models[0](exhibit.inputs(seed)).argmax(1)) for seed in range(1, 30)]
    result = pf.fuse(models, x, alpha=0.5, mix="auto", evaluate=iter(batches))
    assert result.mixing.metric == "accuracy"
    assert result.mixing.samples == sum(len(labels) for _, labels in batches)
    assert result.mixing.mix[0] > 0.5
    for point in result.mixing.points:
        model = pf.fuse(models, x, alpha=0.5, mix=point.mix, blueprint=result.blueprint).model
        hits = [int(row.argmax()) == int(y) for xs, ys in batches for row, y in zip(model(xs), ys, strict=True)]
        assert point.score == pytest.approx(sum(hits) / len(hits))


def test_samples_must_come_in_the_same_order() -> None:
    """A loader that draws from the global generator does; one with a generator of its own does not."""
    exhibit = ZOO["mlp"]
    models, x = [exhibit.model(seed) for seed in (0, 1)], exhibit.inputs()
    images = torch.cat([exhibit.inputs(seed) for seed in range(1, 30)])
    data = TensorDataset(images, torch.arange(len(images)) % 3)
    found = [
        pf.fuse(models, x, alpha=0.5, mix="auto", evaluate=DataLoader(data, 16, shuffle=shuffle)).mixing
        for shuffle in (False, True)
    ]
    assert [p.error for p in found[0].points] == pytest.approx([p.error for p in found[1].points])
    other = DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(0))
    with pytest.raises(pf.DataError, match="shuffle=False"):
        pf.fuse(models, x, mix="auto", evaluate=other)


def test_one_output_is_no_choice_of_classes() -> None:
    """The largest of one number is always the first: accuracy would be the share of zeros, whatever the model."""
    models = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)) for _ in range(2)]
    x = torch.randn(8, 3)
    with pytest.raises(pf.DataError, match="no classes to choose from"):
        pf.fuse(models, x, mix="auto", evaluate=[(x, torch.ones(8, dtype=torch.int64))])


def test_one_number_says_nothing_of_its_error() -> None:
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    mixing = pf.fuse(models, x, mix="auto", evaluate=towards((0.3, 0.7), models, x)).mixing
    assert mixing.clear is None
    assert all(p.error is None for p in mixing.points)
    assert "no confidence estimate" in str(mixing)
    assert str(mixing).count("best") == 2  # the heading and one row
    assert [p.mix for p in mixing.points] == sorted(p.mix for p in mixing.points)


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_shares_may_be_an_array(kind: Any) -> None:
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    assert pf.fuse(models, x, mix=kind([0.25, 0.75])).recipe.mix == (0.25, 0.75)


def test_models_that_are_the_same_keep_equal_shares() -> None:
    model, x = ZOO["mlp"].model(0), ZOO["mlp"].inputs()
    mixing = pf.fuse([model, model], x, alpha=1, mix="auto", evaluate=lambda m: 1.0).mixing
    assert mixing.mix == EQUAL


def test_progress_is_in_the_log_where_there_is_no_terminal(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    evaluate = towards((0.3, 0.7), models, x)
    with caplog.at_level(logging.INFO, "partialfusion"):
        pf.fuse(models, x, mix="auto", evaluate=evaluate)
    assert [line for line in caplog.messages if re.fullmatch(r"mix 0.3 : 0.7 \(\d+ % done\)", line)]
    caplog.clear()
    with caplog.at_level(logging.INFO, "partialfusion"):
        pf.fuse(models, x, mix="auto", evaluate=evaluate, progress=False)
    assert not [line for line in caplog.messages if "done)" in line]


def test_progress_is_told_for_every_mix() -> None:
    told: list[tuple[str, float]] = []
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    evaluate = towards((0.3, 0.7), models, x)
    pf.fuse(models, x, mix="auto", evaluate=evaluate, progress=lambda step, done: told.append((step, done)))
    steps = [done for step, done in told if step.startswith("mix ")]
    assert len(steps) >= 11
    assert all(a <= b for a, b in itertools.pairwise(steps))
    assert max(steps) <= 1.0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mix": "auto"}, "go together"),
        ({"evaluate": lambda m: 0.0}, "go together"),
        ({"mix": "best"}, "must be a list of numbers"),
        ({"mix": "auto", "evaluate": 3}, "pass a function"),
        ({"mix": "auto", "evaluate": lambda m: "good"}, "neither a number"),
        ({"mix": "auto", "evaluate": lambda m: float("nan")}, "not finite"),
        ({"mix": "auto", "evaluate": []}, "no labelled batch"),
        ({"mix": "auto", "evaluate": [(torch.zeros(2, 10), torch.tensor([100, 109]))]}, "labels from 100 to 109"),
        ({"mix": "auto", "evaluate": [(torch.zeros(2, 10), torch.tensor([-1, 0]))]}, "labels from -1 to 0"),
    ],
)
def test_bad_options(options: dict[str, Any], told: str) -> None:
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    with pytest.raises(pf.FusionError, match=told):
        pf.fuse(models, x, **options)
