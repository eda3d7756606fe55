"""Bad input gets one clear error that names the place, the shapes and the remedy, and changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import ZOO, mlp, randomised, vgg

X = torch.randn(2, 10)


def pair() -> list[nn.Module]:
    return [randomised(mlp(), s) for s in (0, 1)]


def refused(kind: type[Exception], match: str, *args: object, **options: object) -> None:
    models = [m for m in (args[0] if isinstance(args[0], list) else []) if isinstance(m, nn.Module)]
    before = [state_bytes(m) for m in models]
    with pytest.raises(kind, match=match) as caught:
        pf.fuse(*args, **options)
    assert isinstance(caught.value, pf.FusionError)
    assert "\n" not in str(caught.value)
    assert [state_bytes(m) for m in models] == before


def state_bytes(model: nn.Module) -> dict[str, bytes]:
    """The state dict bit for bit: NaN equals NaN, and any dtype compares."""
    return {name: tensor.numpy(force=True).tobytes() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("alpha", [-0.1, 1.5, float("nan")])
def test_alpha_out_of_range(alpha: float) -> None:
    refused(pf.OptionError, "alpha=.* out of range", pair(), X, alpha=alpha)


def test_alpha_of_a_space_that_is_not_there() -> None:
    refused(
        pf.OptionError,
        "no elastic space matches 'layer9'; the elastic spaces are 0, 2, 5",
        pair(),
        X,
        alpha={"layer9": 0.5},
    )


def test_alpha_with_a_method_that_fuses_everything() -> None:
    for method in ("average", "permutation", "ot"):
        refused(pf.OptionError, "use method='partial-ot'", pair(), X, alpha=0.4, method=method)


@pytest.mark.parametrize("mix", [(0.5, 0.6), (-0.5, 1.5), (1.0,), (0.2, 0.3, 0.5), (float("nan"), 1.0)])
def test_mix(mix: tuple[float, ...]) -> None:
    refused(pf.OptionError, "mix=", pair(), X, mix=mix)


def test_a_number_as_mix_is_the_share_of_the_first_of_two() -> None:
    for share in (0.3, np.float32(0.25), 1):
        found = pf.fuse(pair(), X, alpha=1.0, mix=share)
        assert found.recipe.mix == (float(share), 1.0 - float(share))
    a, b = pair()
    assert torch.allclose(pf.fuse([a, b], X, alpha=1.0, mix=0.3).model(X), 0.3 * a(X) + 0.7 * b(X), atol=1e-5)
    for share in (-0.1, 1.5, float("nan")):
        refused(pf.OptionError, "between 0 and 1", pair(), X, mix=share)
    refused(pf.OptionError, "mix=0.3 has one share for 3 models", [*pair(), a], X, mix=0.3)


@pytest.mark.parametrize(
    "options",
    [{"mix": 10**400}, {"mix": [10**400, 1]}, {"alpha": 10**400}, {"alpha": {"0": 10**400}}, {"budget": 10**400}],
    ids=str,
)
def test_numbers_that_no_float_holds(options: dict[str, object]) -> None:
    refused(pf.OptionError, "must be a", pair(), X, **options)


@pytest.mark.parametrize("option", ["method", "features", "align", "norm", "convention"])
def test_unknown_options(option: str) -> None:
    refused(pf.OptionError, f"{option}='nonsense' is not known: choose one of", pair(), X, **{option: "nonsense"})


def test_number_and_kind_of_models() -> None:
    refused(pf.OptionError, "two or more models, got 1", pair()[:1], X)
    refused(pf.OptionError, "list of two or more modules", pair()[0], X)
    refused(pf.OptionError, r"models\[1\] is a dict", [pair()[0], {}], X)
    refused(pf.OptionError, "no parameters", [nn.Identity(), nn.Identity()], X)


def test_torchscript() -> None:
    scripted = [torch.jit.trace(m, X) for m in pair()]
    with pytest.raises(pf.OptionError, match="models\\[0\\] is TorchScript"):
        pf.fuse(scripted, X)


def test_another_architecture() -> None:
    other = nn.Sequential(*list(mlp())[:-2], nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 5))
    refused(
        pf.MismatchError,
        r"models\[0\] has a different architecture.*lacks 7\.weight \(5, 12\)",
        [nn.Sequential(*list(mlp())[:-1]), pair()[1]],
        X,
    )
    refused(pf.MismatchError, r"it has 6\.weight \(12, 12\), which the last model lacks", [other, pair()[1]], X)


def test_other_input_output_or_kernel_sizes() -> None:
    wider_out = nn.Sequential(*list(mlp())[:-1], nn.Linear(12, 6))
    refused(
        pf.MismatchError,
        r"7\.weight has shape \(6, 12\) in models\[0\] and \(5, 12\).*output widths \(6 and 5\)",
        [wider_out, pair()[1]],
        X,
    )
    wider_in = nn.Sequential(nn.Linear(11, 12), *list(mlp())[1:])
    refused(pf.MismatchError, r"0\.weight has shape \(12, 11\).*same inputs", [wider_in, pair()[1]], X)
    kernel = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), *list(vgg(8))[1:])
    refused(pf.MismatchError, r"\(8, 3, 5, 5\).*size of a kernel", [kernel, vgg(8)], torch.randn(2, 3, 8, 8))


def test_methods_that_need_equal_widths() -> None:
    models = [mlp(12), mlp(14)]
    for method in ("average", "permutation"):
        refused(pf.MismatchError, "needs equal widths; use method='ot'", models, X, method=method)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none(value: float) -> None:
    models = pair()
    with torch.no_grad():
        models[0][2].weight[3, 4] = value
    refused(pf.OptionError, r"models\[0\]: 2\.weight \(15, 12\) holds 1 NaN or infinite", models, X)


def test_complex_and_quantised() -> None:
    models = pair()
    models[1][0].weight = nn.Parameter(models[1][0].weight.detach().to(torch.complex64))
    refused(pf.OptionError, r"0\.weight \(12, 10\) is complex", models, X)
    models = pair()
    models[1][0].weight = nn.Parameter(torch.zeros(12, 10, dtype=torch.int8), requires_grad=False)
    refused(pf.OptionError, r"0\.weight \(12, 10\) is quantised \(torch\.int8\)", models, X)


def test_inputs_the_model_rejects() -> None:
    refused(
        pf.TraceError,
        r"does not run on the example inputs of shapes \[\(2, 11\)\]",
        pair(),
        torch.randn(2, 11),
    )
    refused(pf.TraceError, "as its forward takes them", pair(), (X, X))


def test_example_inputs_that_show_nothing() -> None:
    empty, nan, infinite = torch.empty(0, 10), X.clone(), X.clone()
    nan[0, 3] = float("nan")
    infinite[1, :2] = float("inf")
    for alpha in (0.4, 1.0):
        refused(pf.OptionError, r"input 0 of shape \(0, 10\) holds no samples", pair(), empty, alpha=alpha)
        refused(pf.OptionError, r"input 0 of shape \(2, 10\) holds 1 NaN or infinite value;", pair(), nan, alpha=alpha)
        refused(pf.OptionError, "holds 2 NaN or infinite values", pair(), infinite, alpha=alpha)
    refused(pf.OptionError, r"input of shape \(0, 10\)", pair(), {"input": empty})
    refused(pf.OptionError, "holds no samples", pair(), empty, blueprint=pf.trace(pair()[1], X))
    for call in (pf.trace, pf.prune):
        with pytest.raises(pf.OptionError, match="holds no samples"):
            call(pair()[0], empty)


class Masked(nn.Module):
    """Weights of a mean, from the inputs and a mask that is added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(10, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x))).mul(torch.softmax(x[:, :5] + mask, 1))


def test_masks_of_minus_infinity_are_inputs_like_others() -> None:
    models = [randomised(Masked(), seed) for seed in (0, 1)]
    mask = torch.tensor([0.0, 0.0, float("-inf"), 0.0, 0.0]).expand(2, 5)
    result = pf.fuse(models, (X, mask), alpha=1.0)
    expected = (models[0](X, mask) + models[1](X, mask)) / 2
    assert torch.allclose(result.model(X, mask), expected, atol=1e-6)
    refused(pf.TraceError, "Masked returns NaN for the example inputs", models, (X, torch.full((2, 5), float("-inf"))))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return x if x.sum().item() > 0 else -x


def test_a_model_that_cannot_be_traced() -> None:
    refused(
        pf.TraceError,
        "torch.export cannot trace Branching.*must not branch on the values",
        [Branching(), Branching()],
        X,
    )


@pytest.mark.parametrize(
    ("option", "value"), [("features", "activations"), ("features", "both"), ("norm", "recalibrate")]
)
def test_data_missing(option: str, value: str) -> None:
    refused(pf.DataError, f"{option}='{value}' needs data", pair(), X, **{option: value})


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ([], "holds no batch"),
        (iter([]), "holds no batch"),
        (torch.randn(5, 10), "data is one tensor"),
        (3, "must be an iterable"),
        (["text"], "a batch is a str"),
        ([torch.randn(4, 10), torch.empty(0, 10)], r"batch 1: input 0 of shape \(0, 10\) holds no samples"),
        ([torch.full((4, 10), float("nan"))], r"batch 0: input 0 of shape \(4, 10\) holds 40 NaN"),
    ],
)
def test_data_of_the_wrong_form(data: object, match: str) -> None:
    refused(pf.DataError, match, pair(), X, data=data)


def test_batches_the_model_rejects() -> None:
    refused(
        pf.DataError,
        r"batch 1 of shapes \[\(4, 9\)\] does not run",
        pair(),
        X,
        data=[torch.randn(4, 10), torch.randn(4, 9)],
    )


def test_batches_too_small_for_statistics() -> None:
    model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    models = [
        randomised(model, 0),
        randomised(nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)), 1),
    ]
    refused(
        pf.DataError,
        "batches of more than one sample",
        models,
        X,
        data=[torch.randn(1, 10)],
        features="weights",
    )


def test_a_blueprint_of_another_model() -> None:
    blueprint = pf.trace(mlp(14), X)
    refused(pf.MismatchError, "blueprint belongs to another model: 0.weight has shape", pair(), X, blueprint=blueprint)


class Turned(nn.Module):
    """Two layers, with the channels between them in their order or the other way round."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.first, self.second, self.turned = nn.Linear(10, 8), nn.Linear(8, 4), turned

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.second(h.flip(1) if self.turned else h)


def test_a_blueprint_of_other_code_with_the_same_shapes() -> None:
    blueprint = pf.trace(Turned(False), X)
    for _ in range(2):
        pf.fuse([Turned(False), Turned(False)], X, alpha=0.4, blueprint=blueprint)
        others = [Turned(True), Turned(True)]
        refused(pf.MismatchError, "another model .*computes flip", others, X, alpha=0.4, blueprint=blueprint)


def test_a_model_that_was_changed_after_it_was_traced() -> None:
    models = [Turned(False), Turned(False)]
    blueprint = pf.trace(models[-1], X)
    for model in models:
        model.turned = True
    refused(pf.MismatchError, "blueprint belongs to another model", models, X, alpha=0.4, blueprint=blueprint)


def test_a_blueprint_of_a_batch_of_another_size() -> None:
    models = pair()
    blueprint = pf.trace(copy.deepcopy(models[-1]), X[:1])
    assert pf.fuse(models, X, alpha=0.4, blueprint=blueprint).count.ratio > 1


def test_trace_refuses_the_same() -> None:
    model = pair()[0]
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    before = state_bytes(model)
    with pytest.raises(pf.OptionError, match="the model: 0.weight"):
        pf.trace(model, X)
    assert state_bytes(model) == before


def test_a_model_where_the_result_is_wanted(tmp_path: Path) -> None:
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    result = pf.fuse(models, x)
    message = "pass what fuse or prune returned"
    with pytest.raises(pf.OptionError, match=message):
        pf.to_blocks(result.model, x)
    with pytest.raises(pf.OptionError, match=message):
        pf.save(result.model, tmp_path / "f.safetensors")
    with pytest.raises(pf.OptionError, match=message):
        pf.refit(result.model, [x])
    assert not list(tmp_path.iterdir())


def test_models_in_different_precision() -> None:
    models, x = [ZOO["mlp"].model(seed) for seed in (0, 1)], ZOO["mlp"].inputs()
    with pytest.raises(pf.OptionError, match="torch.float64 in models.0. and torch.float32 in the last model"):
        pf.fuse([models[0].double(), models[1]], x)
