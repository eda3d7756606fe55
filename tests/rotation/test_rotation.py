"""Directions instead of channels: rotated twins are recovered, everything exact stays exact."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.io.storage import resave
from partialfusion.rotation import Rotatable, rotatable

from .networks import CLASSES, KINDS, WIDTH, Bottleneck, Constant, Transformer, heads_reversed, rotated_by_hand, samples


@cache
def traced(kind: str) -> pf.Blueprint:
    """Once for all tests: a blueprint holds no weights."""
    return pf.trace(Transformer(kind=kind), samples(2))


def free(model: Transformer) -> Rotatable:
    return rotatable([model], [traced(model.kind)], Inputs.of(samples(2)))


def batches() -> list[Tensor]:
    return list(samples().split(16))


def fused(models: Sequence[Transformer], **options: Any) -> pf.Fusion:
    """By partial OT and directions, on data, without refit, unless said otherwise."""
    known: dict[str, Any] = {"blueprint": traced(models[-1].kind), "method": "partial-ot", "data": batches()}
    return pf.fuse(models, samples(2), **known | {"similarity": "rotation", "refit": False} | options)


def output(model: nn.Module, x: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return model(samples(16, seed=9) if x is None else x)


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@pytest.fixture(params=["layer norm", "RMS norm"])
def model(request: pytest.FixtureRequest) -> Transformer:
    return Transformer(kind=request.param)


def test_streams_and_heads_may_be_rotated(model: Transformer) -> None:
    found = free(model)
    assert found.directions == ("embed",)
    assert found.heads == {f"blocks.{k}.q": (f"blocks.{k}.q", f"blocks.{k}.v") for k in range(2)}
    for uncentred in (True, False):
        assert gap(output(found.folded(model, traced(model.kind), uncentred=uncentred)), output(model)) < 1e-5


def test_a_stream_that_is_read_without_a_norm_may_not() -> None:
    found = free(Transformer(kind="post-norm"))
    assert found.directions == ()
    assert found.left == ("embed",)
    assert len(found.heads) == 2


def test_what_may_not_be_rotated_is_named(caplog: pytest.LogCaptureFixture) -> None:
    models = [Transformer(k, kind="post-norm") for k in range(2)]
    with caplog.at_level(logging.WARNING):
        result = fused(models, alpha=0.2)
    assert "embed may not be rotated" in caplog.text
    assert "for they may not be rotated: embed" in str(result.summary())


def test_the_scales_of_all_models_count() -> None:
    """A shift that no bias can take has to be divided by the scale of its norm, in every model."""
    models = [Transformer(k, kind="no biases") for k in range(2)]
    with torch.no_grad():
        models[0].norm.weight[0] = 0.0
    assert fused(models, alpha=0.2).unrotated == ("embed",)


def test_shifts_that_no_bias_can_take_stay_in_the_norms() -> None:
    model = Transformer(kind="no biases")
    found = free(model)
    assert found.directions == ("embed",)
    folded = found.folded(model, traced(model.kind))
    assert float(folded.get_parameter("norm.bias").detach().abs().max()) > 0
    assert gap(output(folded), output(model)) < 1e-5


@pytest.mark.parametrize("data", [True, False], ids=["data", "noise"])
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_a_twin_that_was_rotated_by_hand_is_recovered(model: Transformer, alpha: float, data: bool) -> None:
    twin = rotated_by_hand(model)
    assert gap(output(twin), output(model)) < 1e-5
    result = fused([twin, model], alpha=alpha, data=batches() if data else None)
    assert gap(output(result.model), output(model)) < 1e-4


def test_channels_alone_do_not_recover_it() -> None:
    model = Transformer()
    result = fused([rotated_by_hand(model), model], alpha=0.0, similarity="permutation")
    assert gap(output(result.model), output(model)) > 1e-2


@pytest.mark.parametrize("method", ["interpolate", "cluster"])
def test_generalised_pruning_recovers_it_too(model: Transformer, method: str) -> None:
    result = fused([rotated_by_hand(model), model], alpha=0.0, method=method)
    assert gap(output(result.model), output(model)) < 1e-4


@pytest.mark.parametrize("data", [True, False], ids=["data", "noise"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_three_models(model: Transformer, alpha: float, data: bool) -> None:
    """Rotated twins, one of them with its heads in another order."""
    twins = [rotated_by_hand(heads_reversed(model), 1), rotated_by_hand(model, 2)]
    assert gap(output(twins[0]), output(model)) < 1e-5
    result = fused([*twins, model], alpha=alpha, data=batches() if data else None)
    assert gap(output(result.model), output(model)) < 1e-4


def test_sources_stay_as_they_were(model: Transformer) -> None:
    models = (rotated_by_hand(model), model)
    before = [copy.deepcopy(m.state_dict()) for m in models]
    result = fused(models, alpha=0.3)
    for m, state in zip(models, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in m.state_dict().items())
    assert result.sources == models


def test_everything_kept_apart_is_the_ensemble() -> None:
    a, b = Transformer(0), Transformer(1)
    assert gap(output(fused([a, b], alpha=1.0).model), (output(a) + output(b)) / 2) < 1e-5
    nearly = fused([a, b], alpha={"embed": 0.999, "*": 1.0})
    assert nearly.rotated
    assert gap(output(nearly.model), (output(a) + output(b)) / 2) < 1e-4


def test_norms_stay_what_they_are_where_the_stream_is_fused_as_a_whole() -> None:
    models = [Transformer(0), Transformer(1)]
    whole = fused(models, alpha=0.0).model
    assert [type(m) for m in whole.modules()] == [type(m) for m in models[0].modules()]
    assert [p.shape for p in whole.parameters()] == [p.shape for p in models[0].parameters()]


def test_what_cannot_be_aligned_jointly_says_so(caplog: pytest.LogCaptureFixture) -> None:
    three = [Transformer(k) for k in range(3)]
    result = fused(three, alpha=0.0)
    told = "rotated in one pass: joint alignment is for two models"
    assert caplog.text.count(told) == str(result.summary()).count(told) == 1
    caplog.clear()
    for quiet in (fused(three, alpha=0.0, align="greedy"), fused(three[1:], alpha=0.0)):
        assert "one pass" not in str(quiet.summary()) + caplog.text


def test_unequal_widths(caplog: pytest.LogCaptureFixture) -> None:
    models = [Transformer(0, width=14), Transformer(1)]
    result = fused(models, alpha=0.5)
    assert "joint alignment needs equal widths, and embed differ" in caplog.text
    assert result.plan["embed"].width == WIDTH + 7
    assert output(result.model).shape == (16, CLASSES)
    assert gap(output(fused(models, alpha=0.5, mix=(0, 1)).model), output(models[1])) < 1e-4


def turned_bottleneck(model: Any) -> Any:
    """A copy that computes the same, with what stands between its two linear layers rotated."""
    twin, width = copy.deepcopy(model), model.first.out_features
    turn = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(1)))[0]
    with torch.no_grad():
        twin.first.weight.copy_(turn @ model.first.weight)
        twin.first.bias.copy_(turn @ model.first.bias)
        twin.second.weight.copy_(model.second.weight @ turn.T)
    return twin


def test_linear_layers_in_a_row() -> None:
    model, x = Bottleneck(), torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    blueprint = pf.trace(model, x)
    assert rotatable([model], [blueprint], Inputs.of(x)).directions == ("first",)
    twin = turned_bottleneck(model)
    result = pf.fuse([twin, model], x, alpha=0.0, blueprint=blueprint, similarity="rotation")
    assert gap(output(result.model, x), output(model, x)) < 1e-4


@pytest.mark.parametrize("options", [{"align": "greedy"}, {"align": "greedy", "alpha": 0.25}, {}])
def test_directions_in_which_nothing_varies_are_told_apart_by_their_mean(options: dict[str, Any]) -> None:
    """The bottleneck has 16 channels and varies in 4 directions; its bias lies outside of these."""
    model, x = Constant(), torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    twin = turned_bottleneck(model)
    known: dict[str, Any] = {"alpha": 0.0, "data": [x], "method": "partial-ot", "similarity": "rotation"}
    result = pf.fuse([twin, model], x, **known | options)
    assert "first" in result.rotated
    assert gap(output(result.model, x), output(model, x)) < 1e-4


def test_a_network_without_such_spaces_says_so(caplog: pytest.LogCaptureFixture) -> None:
    models = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        result = pf.fuse(models, torch.randn(5, 4), alpha=0.0, similarity="rotation")
    assert "may be rotated" in caplog.text
    assert result.rotated == ()


@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_files_hold_the_result_and_the_rotations(tmp_path: Path, alpha: float) -> None:
    models = [Transformer(0), Transformer(1)]
    result = fused(models, alpha=alpha)
    assert "directions instead of channels: embed" in str(result.summary())
    path = tmp_path / "rotated.safetensors"
    pf.save(result, path)
    assert torch.equal(output(pf.load(path, into=Transformer(2))), output(result.model))
    again = pf.restore(path, models, samples(2))
    assert torch.equal(output(again.model), output(result.model))
    assert (again.rotated, again.unrotated) == (result.rotated, result.unrotated)
    for ours, theirs in zip(again.equivalents, result.equivalents, strict=True):
        assert torch.equal(output(ours), output(theirs))
    refitted = [pf.refit(r, batches()) for r in (again, result)]
    assert torch.equal(output(refitted[0].model), output(refitted[1].model))


def test_files_are_written_again_with_their_rotations(tmp_path: Path) -> None:
    models = [Transformer(0), Transformer(1)]
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    pf.save(fused(models, alpha=0.4), first)
    stored = pf.inspect(first)
    assert "rotated: embed" in str(stored)
    model = pf.load(first, into=Transformer(2))
    resave(stored, model, second, dtype=torch.float16)
    assert pf.restore(second, models, samples(2)).rotated == stored.rotations.spaces
    assert pf.load_plan(second)["embed"].width == model.get_parameter("embed.weight").shape[0]


def test_files_with_other_rotations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rotated.safetensors"
    pf.save(fused([Transformer(0), Transformer(1)], alpha=0.4), path)
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    for wrong in (2 * torch.eye(WIDTH), torch.eye(WIDTH).flip(0), torch.eye(WIDTH - 1)):
        save_file(tensors | {"rotations/0/embed": wrong}, path, metadata)
        with pytest.raises(pf.CheckpointError, match="damaged"):
            pf.load(path, into=Transformer(2))


def test_refitting_goes_by_the_rotated_models() -> None:
    model = Transformer()
    result = fused([rotated_by_hand(model), model], alpha=0.3, refit=True)
    assert not result.unrefitted
    assert gap(output(result.model), output(model)) < 1e-4


def test_blocks_compute_the_same() -> None:
    result = fused([Transformer(0), Transformer(1)], alpha=0.4)
    assert gap(output(pf.to_blocks(result)), output(result.model)) < 1e-5


def test_a_mix_that_is_searched_for_keeps_the_frames() -> None:
    models = [Transformer(0), Transformer(1)]

    def score(model: nn.Module) -> float:
        return -gap(output(model), output(models[0]))

    result = fused(models, alpha=0.0, mix="auto", evaluate=score)
    assert result.recipe.mix[0] > 0.5
    assert result.rotated


def test_pruning_goes_by_principal_directions() -> None:
    model = Transformer(kind="RMS norm")
    known: dict[str, Any] = {"blueprint": traced(model.kind), "data": batches(), "similarity": "rotation"}
    whole = pf.prune(model, samples(2), keep=1.0, refit=False, **known)
    assert gap(output(whole.model), output(model)) < 1e-5
    half = pf.prune(model, samples(2), keep={"embed": 0.5}, refit=False, **known)
    assert half.rotated
    assert half.plan["embed"].width == WIDTH // 2


def test_the_average_compares_nothing() -> None:
    models = [Transformer(0), Transformer(1)]
    with pytest.raises(pf.OptionError, match="average"):
        fused(models, method="average")
    with pytest.raises(pf.OptionError, match="similarity"):
        fused(models, similarity="reflection")


def test_every_kind_has_a_network() -> None:
    assert {Transformer(kind=kind).kind for kind in KINDS} == set(KINDS)


def test_by_default_transformers_are_rotated_where_the_method_is_automatic_and_there_is_data() -> None:
    models = [Transformer(0), Transformer(1)]
    assert fused(models, alpha=0.2, method="auto", similarity=None).rotated
    assert not fused(models, alpha=0.2, method="auto", similarity=None, data=None).rotated
    assert not fused(models, alpha=0.2, similarity=None).rotated


def test_a_frontier_shows_the_directions() -> None:
    """The pairs that it shows as alike are those that were fused: of a rotated twin, all of them."""
    model = Transformer()
    found = pf.frontier(
        [rotated_by_hand(model), model],
        samples(2),
        evaluate=lambda m: 0.0,
        alphas=[0.5],
        similarity="rotation",
        data=batches(),
        blueprint=traced(model.kind),
        progress=False,
    )
    (point,) = [p for p in found.points if p.alpha == 0.5]
    stream = next(s for s in point.spaces if s.summary.name == "embed")
    assert stream.similarity.costs.max() < 1e-4
    assert sorted(stream.similarity.fused)[1] > 0.99  # one direction of a stream without mean is empty
