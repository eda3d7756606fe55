"""Norms across channels are found by what they compute, and nothing else is taken for one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialfusion.blueprint.norms import NormLayer, find_norms
from partialfusion.nn import ViewNorm

C = 12


class Written(nn.Module):
    """A norm with one or two parameters under any name, computed by a function of the module and its input."""

    def __init__(
        self, compute: Callable[..., Tensor], shapes: dict[str, tuple[int, ...]], **attributes: object
    ) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape) if "b" in name else torch.ones(shape)))
        for name, value in attributes.items():
            setattr(self, name, value)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def rms(x: Tensor, eps: float, dim: int = -1) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + eps)


def standardised(x: Tensor, eps: float, dim: int | tuple[int, ...] = -1) -> Tensor:
    x = x - x.mean(dim, keepdim=True)
    return x / torch.sqrt(x.pow(2).mean(dim, keepdim=True) + eps)


def llama(m: nn.Module, x: Tensor) -> Tensor:
    return m.weight * rms(x.to(torch.float32), m.variance_epsilon).to(x.dtype)


def t5(m: nn.Module, x: Tensor) -> Tensor:
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return m.weight * (x * torch.rsqrt(variance + m.variance_epsilon))


def gemma(m: nn.Module, x: Tensor) -> Tensor:
    return (rms(x.float(), m.eps) * (1.0 + m.weight.float())).type_as(x)


def layer_norm_2d(m: nn.Module, x: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), (C,), m.weight, m.bias, m.eps).permute(0, 3, 1, 2)


def channels_first(m: nn.Module, x: Tensor) -> Tensor:
    return m.gamma[:, None, None] * standardised(x, 1e-6, 1) + m.beta[:, None, None]


def shaped(m: nn.Module, x: Tensor) -> Tensor:
    return standardised(x, m.eps, 1) * m.scale + m.b


ONE, TWO = {"weight": (C,)}, {"weight": (C,), "bias": (C,)}
TOKENS, SQUARE, MAPS, ROWS = (2, 7, C), (2, C, C), (2, C, 5, 6), (4, C)


def norm(
    centred: bool, eps: float, weight: str | None = "weight", bias: str | None = "bias", **rest: object
) -> NormLayer:
    return NormLayer(
        "", centred, **{"dim": -1, "positions": False, "offset": 0.0, **rest}, eps=eps, weight=weight, bias=bias
    )  # type: ignore[arg-type]


BARE = {"weight": None, "bias": None}
NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], NormLayer]] = {
    "nn.LayerNorm": (lambda: nn.LayerNorm(C), TOKENS, norm(True, 1e-5)),
    "as many tokens as channels": (lambda: nn.LayerNorm(C, eps=1e-12), SQUARE, norm(True, 1e-12)),
    "rows": (lambda: nn.LayerNorm(C), ROWS, norm(True, 1e-5)),
    "one row": (lambda: nn.LayerNorm(C), (C,), norm(True, 1e-5)),
    "an unusual eps": (lambda: nn.LayerNorm(C, eps=3.3e-4), TOKENS, norm(True, 3.3e-4)),
    "two channels": (lambda: nn.LayerNorm(2), (2, 5, 2), norm(True, 1e-5)),
    "no bias": (lambda: nn.LayerNorm(C, bias=False), TOKENS, norm(True, 1e-5, bias=None)),
    "not affine": (lambda: nn.LayerNorm(C, elementwise_affine=False), TOKENS, norm(True, 1e-5, **BARE)),
    "trailing ones": (lambda: nn.LayerNorm([C, 1, 1]), (2, C, 1, 1), norm(True, 1e-5, dim=-3)),
    "a leading one": (lambda: nn.LayerNorm([1, C]), (2, 1, C), norm(True, 1e-5)),
    "nn.RMSNorm": (lambda: nn.RMSNorm(C, eps=1e-6), TOKENS, norm(False, 1e-6, bias=None)),
    "nn.RMSNorm without eps": (lambda: nn.RMSNorm(C), TOKENS, norm(False, torch.finfo(torch.float32).eps, bias=None)),
    "nn.RMSNorm, not affine": (
        lambda: nn.RMSNorm(C, eps=1e-6, elementwise_affine=False),
        TOKENS,
        norm(False, 1e-6, **BARE),
    ),
    "Llama": (lambda: Written(llama, ONE, variance_epsilon=1e-6), TOKENS, norm(False, 1e-6, bias=None)),
    "T5": (lambda: Written(t5, ONE, variance_epsilon=1e-6), SQUARE, norm(False, 1e-6, bias=None)),
    "Gemma": (lambda: Written(gemma, ONE, eps=1e-6), TOKENS, norm(False, 1e-6, bias=None, offset=1.0)),
    "permuted": (lambda: Written(layer_norm_2d, TWO, eps=1e-6), MAPS, norm(True, 1e-6, dim=-3)),
    "channels first": (
        lambda: Written(channels_first, {"gamma": (C,), "beta": (C,)}),
        MAPS,
        norm(True, 1e-6, "gamma", "beta", dim=-3),
    ),
    "as high as wide as channels": (
        lambda: Written(channels_first, {"gamma": (C,), "beta": (C,)}),
        (2, C, C, C),
        norm(True, 1e-6, "gamma", "beta", dim=-3),
    ),
    "the bias comes first": (
        lambda: Written(shaped, {"b": (C, 1, 1), "scale": (C, 1, 1)}, eps=1e-5),
        MAPS,
        norm(True, 1e-5, "scale", "b", dim=-3),
    ),
    "only a bias": (
        lambda: Written(lambda m, x: rms(x, 1e-8) + m.b, {"b": (C,)}),
        TOKENS,
        norm(False, 1e-8, None, "b"),
    ),
    "one group": (lambda: nn.GroupNorm(1, C), MAPS, norm(True, 1e-5, dim=-3, positions=True)),
    "one group of one pixel": (lambda: nn.GroupNorm(1, C), (2, C, 1, 1), norm(True, 1e-5, dim=-3, positions=True)),
    "one group of sequences": (lambda: nn.GroupNorm(1, C), SQUARE, norm(True, 1e-5, dim=-2, positions=True)),
    "one group of rows": (lambda: nn.GroupNorm(1, C), ROWS, norm(True, 1e-5)),
    "one group, not affine": (
        lambda: nn.GroupNorm(1, C, affine=False),
        MAPS,
        norm(True, 1e-5, dim=-3, positions=True, **BARE),
    ),
    "written without parameters": (lambda: Written(lambda m, x: rms(x, 1e-5), {}), TOKENS, norm(False, 1e-5, **BARE)),
    "a sixth of a model's shape": (
        lambda: Written(lambda m, x: rms(x.reshape(2, 7, C), 1e-6) * m.weight, ONE),
        TOKENS,
        norm(False, 1e-6, bias=None),
    ),
}

OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "identity": (nn.Identity, TOKENS),
    "dropout": (lambda: nn.Dropout(0.5), TOKENS),
    "no dropout": (lambda: nn.Dropout(0.0), TOKENS),
    "gelu": (nn.GELU, TOKENS),
    "prelu": (lambda: nn.PReLU(C), MAPS),
    "softmax": (lambda: nn.Softmax(-1), TOKENS),
    "linear": (lambda: nn.Linear(C, C), TOKENS),
    "linear without bias": (lambda: nn.Linear(C, C, bias=False), TOKENS),
    "depthwise": (lambda: nn.Conv2d(C, C, 1, groups=C), MAPS),
    "layer scale": (lambda: Written(lambda m, x: x * m.weight, ONE), TOKENS),
    "several groups": (lambda: nn.GroupNorm(3, C), MAPS),
    "a group a channel": (lambda: nn.GroupNorm(C, C), MAPS),
    "several groups, not affine": (lambda: nn.GroupNorm(3, C, affine=False), MAPS),
    "a group a channel, not affine": (lambda: nn.GroupNorm(3, 3, affine=False), (2, 3, 5, 6)),
    "a group a channel of sequences, not affine": (lambda: nn.GroupNorm(2, 2, affine=False), (2, 2, 5)),
    "several dimensions": (lambda: nn.LayerNorm([7, C]), TOKENS),
    "several dimensions, not affine": (lambda: nn.LayerNorm([7, C], elementwise_affine=False), TOKENS),
    "all of a map, not affine": (lambda: nn.LayerNorm([C, 5, 6], elementwise_affine=False), MAPS),
    "both sides of a map, written": (lambda: Written(lambda m, x: standardised(x, 1e-5, (-2, -1)), {}), MAPS),
    "batch norm": (lambda: nn.BatchNorm2d(C), MAPS),
    "batch norm of rows": (lambda: nn.BatchNorm1d(C, affine=False, track_running_stats=False), ROWS),
    "batch norm without statistics": (lambda: nn.BatchNorm2d(C, track_running_stats=False), MAPS),
    "instance norm": (lambda: nn.InstanceNorm2d(C), MAPS),
    "instance norm, affine": (lambda: nn.InstanceNorm2d(C, affine=True), MAPS),
    "instance norm of sequences": (lambda: nn.InstanceNorm1d(7), TOKENS),
    "instance norm of one sequence": (lambda: nn.InstanceNorm1d(4), ROWS),
    "instance norm of one map": (lambda: nn.InstanceNorm2d(C), (C, 5, 6)),
    "unit length": (lambda: Written(lambda m, x: F.normalize(x, dim=-1), {}), TOKENS),
    "unit length, scaled": (lambda: Written(lambda m, x: F.normalize(x, dim=-1) * C**0.5 * m.weight, ONE), TOKENS),
    "unit length over positions": (lambda: Written(lambda m, x: rms(x, 1e-5, 1) * m.weight, ONE), TOKENS),
    "eps outside of the root": (
        lambda: Written(lambda m, x: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6) * m.weight, ONE),
        TOKENS,
    ),
    "an eps nobody knows": (lambda: Written(lambda m, x: rms(x, 3.7e-6) * m.weight, ONE), TOKENS),
    "the sample variance": (
        lambda: Written(lambda m, x: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * m.weight, ONE),
        TOKENS,
    ),
    "the mean stays": (
        lambda: Written(lambda m, x: x / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt() * m.weight, ONE),
        TOKENS,
    ),
    "an activation behind it": (lambda: Written(lambda m, x: F.relu(rms(x, 1e-6) * m.weight), ONE), TOKENS),
    "a weight that is squared": (lambda: Written(lambda m, x: rms(x, 1e-6) * m.weight**2, ONE), TOKENS),
    "a parameter without use": (lambda: Written(lambda m, x: rms(x, 1e-6) * m.weight, TWO), TOKENS),
    "one scale for all": (lambda: Written(lambda m, x: rms(x, 1e-6) * m.weight, {"weight": (1,)}), TOKENS),
    "one channel": (lambda: nn.LayerNorm(1), (2, 7, 1)),
    "a tensor that is no parameter": (
        lambda: Written(lambda m, x: rms(x, 1e-6) * m.gain, {}, gain=torch.ones(C)),
        TOKENS,
    ),
    "random": (lambda: Written(lambda m, x: rms(x, 1e-6) * m.weight + torch.randn_like(x), ONE), TOKENS),
    "view norm": (lambda: ViewNorm(torch.full((1, C), 1 / C), torch.ones(1, C)), TOKENS),
}


class Holder(nn.Module):
    """A module that runs another on a linear map of its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


def search(module: nn.Module, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> dict[str, NormLayer]:
    def run(model: nn.Module) -> None:
        device = "meta" if any(p.is_meta for p in model.parameters()) else "cpu"
        with torch.no_grad():
            for shape in shapes:
                model(torch.randn(shape, device=device).to(dtype))

    return find_norms(Holder(module), run)


def expected(norm: NormLayer) -> dict[str, NormLayer]:
    return {"inner": NormLayer(**{**vars(norm), "path": "inner"})}


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_found(name: str) -> None:
    build, shape, norm = NORMS[name]
    assert search(build(), shape) == expected(norm)


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_are_not(name: str) -> None:
    build, shape = OTHERS[name]
    assert search(build().eval(), shape) == {}


@pytest.mark.parametrize("name", [name for name in NORMS if name != "nn.RMSNorm without eps"])
def test_in_double_precision(name: str) -> None:
    build, shape, norm = NORMS[name]
    assert search(build().double(), shape, dtype=torch.float64) == expected(norm)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["nn.LayerNorm", "Llama", "Gemma", "one group"])
def test_in_half_precision(name: str, dtype: torch.dtype) -> None:
    build, shape, norm = NORMS[name]
    assert search(build().to(dtype), shape, dtype=dtype) == expected(norm)


@pytest.mark.parametrize("name", [name for name in NORMS if NORMS[name][2].weight])
def test_on_the_meta_device(name: str) -> None:
    build, shape, norm = NORMS[name]
    assert search(build().to("meta"), shape) == expected(norm)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_values_of_parameters_do_not_matter(value: float) -> None:
    build, shape, norm = NORMS["Gemma"]
    module = build()
    nn.init.constant_(module.weight, value)
    assert search(module, shape) == expected(norm)


def test_the_norm_is_what_the_view_norm_computes() -> None:
    """A view norm built from what was found, with one view, computes what the module does."""
    generator = torch.Generator().manual_seed(0)
    for name, (build, shape, norm) in NORMS.items():
        module = build()
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        found = search(module, shape)["inner"]
        channels = shape[norm.dim]
        parameters = dict(module.named_parameters())
        replacement = ViewNorm(
            torch.full((1, channels), 1 / channels),
            torch.ones(1, channels),
            weight=parameters.get(found.weight or ""),  # type: ignore[arg-type]
            bias=parameters.get(found.bias or ""),  # type: ignore[arg-type]
            eps=found.eps,
            centred=found.centred,
            dim=found.dim,
            positions=found.positions,
            offset=found.offset,
        )
        x = torch.randn(shape, generator=generator)
        with torch.no_grad():
            assert torch.allclose(replacement(x), module(x), atol=1e-5), name


def test_a_module_that_is_used_several_times() -> None:
    assert search(nn.LayerNorm(C), TOKENS, (3, 4, C), ROWS, (2, 3, 4, C)) == expected(norm(True, 1e-5))
    assert search(nn.GroupNorm(1, C), MAPS, (1, C, 9, 2)) == expected(NORMS["one group"][2])


def test_uses_that_are_not_alike() -> None:
    """The channels are not at one place, or not of one number."""
    assert search(nn.GroupNorm(1, C), MAPS, SQUARE) == {}
    assert search(Written(lambda m, x: rms(x, 1e-5), {}), TOKENS, (2, 7, 5)) == {}


class Odd(nn.Module):
    """A module that is called with more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.called = nn.LayerNorm(C), Written(lambda m, x: rms(x, 1e-6) * m.weight, ONE)
        self.gated = Gated()

    def forward(self, x: Tensor) -> Tensor:
        return self.gated(self.called(x=x), x) + self.norm(x)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(C))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return rms(x, 1e-6) * self.weight


def test_calls_with_more_than_a_tensor() -> None:
    assert list(find_norms(Odd(), lambda m: m(torch.randn(TOKENS)))) == ["norm"]


def test_paths() -> None:
    model = nn.Sequential(nn.Linear(C, C), nn.Sequential(nn.LayerNorm(C), nn.GELU()), nn.RMSNorm(C, eps=1e-6))
    model.append(nn.Sequential(nn.LayerNorm(C, elementwise_affine=False)))
    found = find_norms(model, lambda m: m(torch.randn(ROWS)))
    assert [(path, n.path, n.centred) for path, n in found.items()] == [
        ("1.0", "1.0", True),
        ("2", "2", False),
        ("3.0", "3.0", True),
    ]
    (alone,) = find_norms(nn.LayerNorm(C), lambda m: m(torch.randn(ROWS))).values()
    assert alone == norm(True, 1e-5)


def test_the_fast_path_of_the_encoder_does_not_hide_its_norms() -> None:
    layer = nn.TransformerEncoderLayer(C, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()

    def run(model: nn.Module) -> None:
        with torch.no_grad():
            model(torch.randn(TOKENS))

    assert len(find_norms(model, run)) == 4
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_model_stays_as_it_was() -> None:
    calls: list[str] = []
    model = nn.Sequential(nn.Linear(C, C), nn.LayerNorm(C), Written(llama, ONE, variance_epsilon=1e-6)).train()
    model[1].register_forward_hook(lambda *_: calls.append("hook"))
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    x = torch.randn(ROWS)
    state = torch.get_rng_state()
    assert len(find_norms(model, lambda m: m(x))) == 2
    assert calls == ["hook"]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())
    assert [len(m._forward_hooks) for m in model] == [0, 1, 0]
    assert all(p.requires_grad for p in model.parameters())


def test_errors_of_the_run_pass_and_hooks_are_removed() -> None:
    model = nn.Sequential(nn.LayerNorm(C))
    with pytest.raises(RuntimeError, match="normalized_shape"):
        find_norms(model, lambda m: m(torch.randn(2, C + 1)))
    assert not model[0]._forward_hooks
