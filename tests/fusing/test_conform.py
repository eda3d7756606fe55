"""Models that compute different things are refused, by their graphs; what does not change the results is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.blueprint import difference, digest, operations, trace_labels
from partialfusion.blueprint.program import export
from partialfusion.core.inputs import Inputs
from partialfusion.fusing import conform
from partialfusion.fusing.conform import conformed

X = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Attention by hand, with all settings that its parameters do not show."""

    def __init__(self, width: int = 16, heads: int = 4, scale: float = 0.5, theta: float = 1e4, p: float = 0.0) -> None:
        super().__init__()
        self.heads, self.scale, self.p = heads, scale, p
        self.enter, self.qkv, self.out = nn.Linear(6, 16), nn.Linear(16, 3 * width), nn.Linear(width, 4)
        self.register_buffer("frequencies", theta ** (-torch.arange(5.0) / 5))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.enter(x))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) * self.scale * self.frequencies).softmax(-1)
        return self.out(F.dropout((weights @ v).transpose(1, 2).flatten(2), self.p, self.training))


class Activated(nn.Module):
    """Two layers with anything between them."""

    def __init__(self, activation: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.a, self.b, self.activation = nn.Linear(6, width), nn.Linear(width, 4), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.activation(self.a(x)))


class RMS(nn.Module):
    """A norm by hand."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


def randomised(model: nn.Module, seed: int) -> nn.Module:
    """Only parameters are random: buffers are tables here."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return model


def checked(first: nn.Module, second: nn.Module) -> list[pf.Blueprint]:
    models, inputs = [randomised(first, 0), randomised(second, 1)], Inputs.of(X)
    return conformed(models, trace_labels(models[-1], inputs), inputs)


def refused(message: str, first: nn.Module, second: nn.Module) -> None:
    with pytest.raises(pf.MismatchError, match=message):
        checked(first, second)


def normed(eps: float) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), RMS(eps), nn.Linear(8, 4))


def test_heads_of_another_size_are_refused() -> None:
    refused(
        r"unflatten has sizes \[2, -1\] in models\[0\] and \[4, -1\] in the last model", Attention(heads=2), Attention()
    )
    refused(r"2 heads.* of 16 channels in models\[0\] and 4 of 4 in the last", Attention(32, heads=2), Attention())


def test_more_heads_of_the_same_size_conform() -> None:
    wide, last = checked(Attention(32, heads=8), Attention())
    assert [s.name for s in wide] == [s.name for s in last]
    assert {(s.heads, t.heads) for s, t in zip(wide, last, strict=True) if s.blocks is not None} == {(8, 4)}


def test_another_scale_of_attention_is_refused_at_any_width() -> None:
    message = r"the model: mul has other 0.25 in models\[0\] and 0.5 in the last model"
    refused(message, Attention(scale=0.25), Attention())
    refused(message, Attention(32, heads=8, scale=0.25), Attention())


def test_a_buffer_that_belongs_to_no_channel_is_a_constant() -> None:
    refused(
        r"the buffer frequencies differs .* the same settings, or copy frequencies", Attention(theta=1e6), Attention()
    )
    assert len({id(b) for b in checked(Attention(), Attention())}) == 1


def test_what_only_training_uses_may_differ() -> None:
    checked(Attention(p=0.1), Attention(p=0.3))


def test_functions_and_their_settings_are_compared() -> None:
    def leaky(slope: float) -> Callable[[Tensor], Tensor]:
        return lambda x: F.leaky_relu(x, slope)

    refused(
        r"leaky_relu has negative_slope 0.1 in models\[0\] and 0.2 in", Activated(leaky(0.1)), Activated(leaky(0.2))
    )
    refused(r"leaky_relu has negative_slope 0.1 in", Activated(leaky(0.1), 12), Activated(leaky(0.2)))
    refused(r"negative_slope 0.01 in models\[0\] and 0.2 in", Activated(F.leaky_relu), Activated(leaky(0.2)))
    refused(r"models\[0\] computes relu and the last model gelu", Activated(F.relu), Activated(F.gelu))
    refused("gelu has approximate none", Activated(F.gelu), Activated(lambda x: F.gelu(x, approximate="tanh")))


def test_constants_in_the_code_are_compared() -> None:
    def shifted(values: list[float]) -> nn.Module:
        return Activated(lambda x: torch.relu(x) * torch.tensor(values))

    refused(r"constant of shape \(1,\) in models\[0\] and other numbers in", shifted([1.0]), shifted([2.0]))
    checked(shifted([1.0]), shifted([1.0]))


@pytest.mark.parametrize("eps", [1e-5, 1.01e-6])
def test_eps_of_a_norm_by_hand(eps: float) -> None:
    refused(f"^1: the norm has eps={eps} in models\\[0\\] and 1e-06 in the last model", normed(eps), normed(1e-6))
    checked(normed(eps), normed(eps))


@pytest.mark.parametrize("where", ["0", "1", ""])
def test_a_hook_that_changes_the_result_is_part_of_the_model(where: str) -> None:
    hooked = normed(1e-6)
    hooked.get_submodule(where).register_forward_hook(lambda module, args, output: 2 * output)
    message = r"models\[0\] computes mul and the last model|models\[0\] also computes mul"
    refused(message, hooked, normed(1e-6))
    checked(hooked, copy.deepcopy(hooked))
    watched = normed(1e-6)
    watched.get_submodule(where).register_forward_hook(lambda module, args, output: None)
    checked(watched, normed(1e-6))


def test_parametrised_models_conform() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 4))

    checked(model(), model())


def test_models_are_exported_once_unless_they_are_sure_to_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [randomised(Activated(F.relu, width), width) for width in (8, 12, 8)]
    models.insert(0, randomised(Activated(lambda x: F.relu(x)), 1))
    blueprint = pf.trace(models[-1], X, check=False)
    seen: list[nn.Module] = []

    def counted(model: nn.Module, *args: Any) -> Any:
        seen.append(model)
        return export(model, *args)

    monkeypatch.setattr(conform, "export", counted)
    conformed([*models[:3], *models[:3], models[3], models[3]], blueprint, Inputs.of(X))
    assert seen == [models[0], models[2]]


def test_models_stay_as_they_were() -> None:
    class Remembering(Activated):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "mask"):
                self.mask = torch.ones(x.shape[-2], 1)
            return super().forward(x * self.mask)

    models = [randomised(Remembering(F.relu), seed) for seed in (0, 1)]
    with torch.no_grad():
        models[0](X)  # one has been used, the other has not
    before = [set(vars(m)) for m in models]
    conformed(models, trace_labels(models[-1], Inputs.of(X)), Inputs.of(X))
    assert [set(vars(m)) for m in models] == before


def test_digests_compare_bits() -> None:
    nan, zeros = torch.tensor([float("nan"), 1.0]), torch.zeros(2)
    assert digest(nan) == digest(nan.clone())
    assert digest(nan) != digest(zeros) != digest(zeros.double())
    assert digest(zeros) != digest(torch.zeros(2, 1))
    assert digest(torch.zeros((), dtype=torch.bool)) != digest(torch.ones((), dtype=torch.bool))
    assert digest(torch.zeros(2, device="meta")) == digest(torch.ones(2, device="meta"))


def test_nothing_differs_between_two_exports() -> None:
    first, second = (operations(export(randomised(Attention(), seed), Inputs.of(X))) for seed in (0, 1))
    assert first == second
    assert difference(first, second, same_shapes=True, names=("a", "b")) is None
    assert difference(first[:-1], second, same_shapes=True, names=("a", "b")) == (
        "the model: b also computes output, which a does not"
    )


def test_counters_are_not_averaged() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    model.register_buffer("position_ids", torch.arange(3))
    assert trace_labels(model, Inputs.of(torch.randn(2, 3, 3, 3))).averaged == ()


def _doubled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return 2 * output


def _halved(module: nn.Module, args: tuple[Tensor]) -> Tensor:
    return args[0] / 2


def _attribute(model: Activated) -> None:
    model.activation = lambda x: F.leaky_relu(x, 0.3)


def _hook(model: Activated) -> None:
    model.a.register_forward_hook(_doubled)


def _hook_before(model: Activated) -> None:
    model.b.register_forward_pre_hook(_halved)


def _other_forward(model: Activated) -> None:
    model.forward = lambda x: model.b(torch.tanh(model.a(x)))  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [_attribute, _hook, _hook_before, _other_forward])
def test_other_code_with_the_same_parameters_is_refused_at_every_alpha(change: Callable[[Activated], None]) -> None:
    plain, changed = (randomised(Activated(F.leaky_relu), seed) for seed in (0, 1))
    change(changed)
    for models in ([changed, plain], [plain, changed]):
        blueprint = pf.trace(models[-1], X, check=False)
        for options in ({"alpha": 0.0}, {"alpha": 0.4}, {"alpha": 1.0}, {"method": "average"}):
            with pytest.raises(pf.MismatchError, match="fuse models of the same code"):
                pf.fuse(models, X, **options, blueprint=blueprint)
