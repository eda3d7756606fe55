"""Interpolation: some channels are kept, the others are read as linear combinations of them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import STIFF, ZOO, Exhibit, error, permuted_twin, randomised

TOLERANCE = 1e-5
EVERYTHING = {**ZOO, **STIFF}
everything = pytest.mark.parametrize("exhibit", EVERYTHING.values(), ids=EVERYTHING.keys())


def batches(exhibit: Exhibit) -> list[Tensor]:
    return [torch.cat([exhibit.inputs(seed) for seed in range(12)])]


def at_one_networks_size(
    models: list[nn.Module], x: Tensor, mix: tuple[float, float], data: list[Tensor] | None
) -> pf.Fusion:
    return pf.fuse(models, x, method="interpolate", alpha=0.0, mix=mix, data=data, norm="analytic", check=False)


@everything
def test_with_all_channels_it_is_the_ensemble(exhibit: Exhibit) -> None:
    a, b, x = exhibit.model(0), exhibit.model(1), exhibit.inputs()
    fused = pf.fuse([a, b], x, method="interpolate", alpha=1.0, mix=(0.3, 0.7), data=batches(exhibit), check=False)
    assert error(fused.model(x), 0.3 * a(x) + 0.7 * b(x)) < TOLERANCE
    assert not any(r.dense_readers for r in fused.plan.values())


@everything
def test_with_its_twin_at_one_networks_size_a_model_is_itself(exhibit: Exhibit) -> None:
    model, x = exhibit.model(0), exhibit.inputs()
    twin = permuted_twin(model, x, seed=3)
    fused = at_one_networks_size([twin, model], x, (0.4, 0.6), batches(exhibit))
    assert error(fused.model(x), model(x)) < TOLERANCE
    assert {n: p.shape for n, p in fused.model.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["mlp", "vgg", "grouped"])
def test_without_data_too(name: str) -> None:
    model, x = ZOO[name].model(0), ZOO[name].inputs()
    fused = at_one_networks_size([permuted_twin(model, x, seed=3), model], x, (0.4, 0.6), None)
    assert error(fused.model(x), model(x)) < TOLERANCE


class Stacked(nn.Module):
    """The states of the lower layer are computed inside one operation, so that nothing shows them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.LSTM(5, 6, num_layers=2, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x)[0][:, -1])


def test_spaces_that_noise_does_not_show_either_are_recovered() -> None:
    model, x = randomised(Stacked(), 0), torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    blueprint = pf.trace(model, x)
    twin = permuted_twin(model, x, seed=3, blueprint=blueprint)
    fused = pf.fuse([twin, model], x, method="interpolate", alpha=0.0, mix=(0.3, 0.7), blueprint=blueprint)
    assert error(fused.model(x), model(x)) < TOLERANCE


@everything
@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_one_is_that_model(exhibit: Exhibit, share: int) -> None:
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    mix = (1.0, 0.0) if share == 0 else (0.0, 1.0)
    fused = at_one_networks_size(models, x, mix, batches(exhibit))
    assert error(fused.model(x), models[share](x)) < TOLERANCE


@pytest.mark.parametrize("name", ["mlp", "vgg-bn", "mixer"])
def test_unequal_widths_and_three_models(name: str) -> None:
    exhibit = ZOO[name]
    models = [exhibit.model(0), exhibit.model(1, exhibit.widths[1]), exhibit.model(2)]
    x, mix = exhibit.inputs(), (0.2, 0.5, 0.3)
    ensemble = sum(w * m(x) for w, m in zip(mix, models, strict=True))
    gaps = []
    for alpha in (0.0, 0.8, 1.0):
        fused = pf.fuse(
            models, x, method="interpolate", alpha=alpha, mix=mix, data=batches(exhibit), norm="analytic", check=False
        )
        gaps.append(error(fused.model(x), ensemble))
    assert gaps[2] < TOLERANCE < gaps[1] < gaps[0]


def linear(n: int, hidden: int, m: int, *, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n, hidden, bias=bias), nn.ReLU(), nn.Linear(hidden, m, bias=bias))


@pytest.mark.parametrize("bias", [True, False])
def test_the_last_layer_is_the_least_squares_fit_on_the_kept_channels(bias: bool) -> None:
    """With a bias a regression with intercept, without one a regression through the origin."""
    model = randomised(linear(4, 10, 3, bias=bias), 0)
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
    result = pf.prune(model, x[:2], keep=0.5, method=pf.Interpolate(ridge=1e-9), data=[x])
    kept = result.plan["0"].pairs[0].source
    hidden = torch.relu(model[0](x)).detach().double()
    inputs = torch.cat([hidden[:, kept], torch.ones(200, 1)], 1) if bias else hidden[:, kept]
    expected = inputs @ torch.linalg.lstsq(inputs, model(x).detach().double()).solution
    assert error(result.model(x), expected) < 1e-4


def test_a_constant_goes_into_the_mean_of_the_norm_that_follows() -> None:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 2)
    )
    model = randomised(model, 0)
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    result = pf.prune(model, x[:2], keep={"0": 0.5}, method=pf.Interpolate(ridge=1e-9), data=[x], norm="analytic")
    before = model[2](torch.sigmoid(model[0](x))) - model[3].running_mean
    after = result.model[2](torch.sigmoid(result.model[0](x))) - result.model[3].running_mean
    assert after.mean(0).tolist() == pytest.approx(before.mean(0).tolist(), abs=1e-4)
    assert torch.equal(model[3].running_var, result.model[3].running_var)


def test_it_is_closer_than_clusters() -> None:
    exhibit = ZOO["mlp"]
    a, b, data = exhibit.model(0), exhibit.model(1), batches(exhibit)
    ensemble = (a(data[0]) + b(data[0])) / 2
    gaps = {
        (method, refit): error(
            pf.fuse([a, b], exhibit.inputs(), method=method, alpha=0.3, data=data, refit=refit).model(data[0]), ensemble
        )
        for method in ("cluster", "interpolate")
        for refit in (False, True)
    }
    assert gaps["interpolate", False] < 0.9 * gaps["cluster", False]
    assert gaps["interpolate", True] < gaps["cluster", True]
    assert gaps["interpolate", True] < gaps["interpolate", False]


def test_dense_reads_leave_no_zero_blocks_and_sizes_are_counted_so(tmp_path: Path) -> None:
    exhibit = ZOO["vgg"]
    models, x, data = [exhibit.model(0), exhibit.model(1)], exhibit.inputs(), batches(exhibit)
    fused = pf.fuse(models, x, method="interpolate", alpha=0.4, data=data, check=False)
    assert fused.count.effective == fused.count.dense
    weight = fused.model.get_parameter("3.weight")
    assert int((weight == 0).sum()) == 0
    (free,) = torch.autograd.grad(fused.model(x).sum(), weight)
    with pf.freeze_zeros(fused):
        assert torch.equal(torch.autograd.grad(fused.model(x).sum(), weight)[0], free)
    assert error(pf.to_blocks(fused)(x), fused.model(x)) < TOLERANCE
    path = tmp_path / "fused.safetensors"
    pf.save(fused, path)
    assert torch.equal(pf.load(path, into=models[1])(x), fused.model(x))
    again = pf.restore(path, models, x, check=False)
    assert again.count == fused.count
    assert error(pf.refit(again, data).model(x), pf.refit(fused, data).model(x)) < TOLERANCE
    pair = again.plan["0"].pairs[0]
    assert np.array_equal(pair.read_matrix(), fused.plan["0"].pairs[0].read_matrix())
    with pytest.raises(pf.OptionError, match="files leave out the dense kernels"):
        pair.reading("3.weight")


def test_a_budget_is_kept_and_predicted() -> None:
    exhibit = ZOO["mlp"]
    models, x, data = [exhibit.model(0), exhibit.model(1)], exhibit.inputs(), batches(exhibit)
    fused = pf.fuse(models, x, method="interpolate", budget=1.3, data=data, check=False)
    assert 1.1 < fused.count.ratio <= 1.3
    assert isinstance(fused.recipe.alpha, dict)
    pruned = pf.prune(models[0], x, method="interpolate", budget=0.5, data=data, check=False)
    assert 0.4 < pruned.count.ratio <= 0.5


def test_heads_are_kept_as_wholes_and_their_values_are_combined() -> None:
    width = 12

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(5, width)
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
            self.out = nn.Linear(width, 4)
            self.heads = 4

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.enter(x))
            q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for f in (self.q, self.k, self.v))
            y = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
            return self.out(y.transpose(-2, -3).flatten(-2)).mean(1)

    model = randomised(Block(), 0)
    x = torch.randn(64, 6, 5, generator=torch.Generator().manual_seed(0))
    gaps = {}
    for method in ("cluster", "interpolate"):
        result = pf.prune(model, x[:2], keep={"q": 0.5, "v": 0.5}, method=method, data=[x])
        gaps[method] = error(result.model(x), model(x))
        assert result.model.heads == 2
    assert result.plan["v"].dense_readers == {"out.weight"}
    assert gaps["interpolate"] < gaps["cluster"]
    kept = result.plan["v"].pairs[0].source
    assert np.array_equal(kept, result.plan["q"].pairs[0].source)


def test_what_a_tied_weight_reads_is_clustered_and_the_result_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 8)
            self.inner = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8))
            self.norm = nn.LayerNorm(8)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            return nn.functional.linear(self.norm(x + self.inner(x)), self.embedding.weight)

    model = randomised(Tied(), 0)
    tokens = torch.randint(9, (16, 5), generator=torch.Generator().manual_seed(0))
    with caplog.at_level(logging.WARNING):
        result = pf.prune(model, tokens, keep=0.5, method="interpolate", data=[tokens])
    assert not result.plan["embedding"].dense_readers
    assert result.plan["inner.0"].dense_readers == {"inner.2.weight"}
    note = "clustered, since not all that reads them can combine their channels: embedding"
    assert note in str(result.summary())
    assert note in caplog.text
    assert torch.isfinite(result.model(tokens)).all()


def test_without_data_it_works_on_noise_and_says_so() -> None:
    exhibit = ZOO["vgg"]
    a, b, x = exhibit.model(0), exhibit.model(1), exhibit.inputs()
    first, again = (pf.fuse([a, b], x, method="interpolate", alpha=0.3) for _ in range(2))
    assert all(torch.equal(p, q) for p, q in zip(first.model.parameters(), again.model.parameters(), strict=True))
    assert "activations of noise" in str(first.summary())
    ensemble = (a(x) + b(x)) / 2
    assert error(first.model(x), ensemble) < error(pf.fuse([a, b], x, method="cluster", alpha=0.3).model(x), ensemble)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"site": "pre"}, "site='pre'"), ({"features": "both"}, "features='both'"), ({"convention": "mass"}, None)],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], words: str | None) -> None:
    exhibit = ZOO["mlp"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    if words is None:
        either = [pf.fuse(models, x, method="interpolate", data=[x], **o).model(x) for o in ({}, options)]  # type: ignore[arg-type]
        assert torch.equal(*either)
        return
    with pytest.raises(pf.OptionError, match=words):
        pf.fuse(models, x, method="interpolate", data=[x], **options)  # type: ignore[arg-type]


def test_shares_can_be_searched_for() -> None:
    exhibit = ZOO["mlp"]
    a, b, data = exhibit.model(0), exhibit.model(1), batches(exhibit)
    wanted = (0.8 * a(data[0]) + 0.2 * b(data[0])).detach()

    def evaluate(model: nn.Module) -> float:
        return -float((model(data[0]) - wanted).detach().square().mean())

    found = pf.fuse([a, b], exhibit.inputs(), method="interpolate", alpha=0.6, mix="auto", evaluate=evaluate, data=data)
    assert found.recipe.mix[0] == pytest.approx(0.8, abs=0.1)
