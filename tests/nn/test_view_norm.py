"""View norms against the formula written out in double precision, and against PyTorch's own norms."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.nn import ViewNorm

V, C = 3, 24
EPS = 1e-5
FORMS = [(c, d, p) for c in (True, False) for d, p in ((-1, False), (-2, False), (-3, False), (-2, True), (-3, True))]
every_form = pytest.mark.parametrize(("centred", "dim", "positions"), FORMS)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def random_views(views: int = V, channels: int = C) -> tuple[Tensor, Tensor]:
    """Views that leave out some channels, and shares."""
    a = torch.rand(views, channels, generator=generator(1), dtype=torch.float64)
    a = a * (torch.rand(views, channels, generator=generator(2)) > 0.3)
    b = torch.rand(views, channels, generator=generator(3), dtype=torch.float64)
    return a / a.sum(1, keepdim=True), b / b.sum(0)


def uniform(channels: int = C) -> tuple[Tensor, Tensor]:
    return torch.full((1, channels), 1 / channels, dtype=torch.float64), torch.ones(1, channels)


def affine(channels: int = C, dtype: torch.dtype = torch.float32) -> tuple[nn.Parameter, nn.Parameter]:
    return nn.Parameter(draw(channels, seed=4, dtype=dtype)), nn.Parameter(draw(channels, seed=5, dtype=dtype))


def build(dtype: torch.dtype = torch.float32, **options: object) -> ViewNorm:
    weight, bias = affine(dtype=dtype)
    return ViewNorm(*random_views(), weight=weight, bias=bias, eps=EPS, **options)  # type: ignore[arg-type]


def naive(norm: ViewNorm, x: Tensor) -> Tensor:
    """The formula in double precision, channel by channel."""
    views, shares = norm.views.double(), norm.shares.double()
    weight, bias = (getattr(norm, name) for name in (norm.weight_name, norm.bias_name))
    moved = x.double().movedim(norm.dim, 0)
    behind = tuple(range(norm.dim + 1, 0)) if norm.positions else ()
    out = torch.zeros_like(moved)
    for v in range(len(views)):
        weights = views[v].reshape(-1, *[1] * (x.dim() - 1))
        mean = (weights * moved).sum(0, keepdim=True) * norm.centred
        mean = mean.mean(behind, keepdim=True) if behind else mean
        power = (weights * (moved - mean) ** 2).sum(0, keepdim=True)
        power = power.mean(behind, keepdim=True) if behind else power
        out += shares[v].reshape(weights.shape) * (moved - mean) / (power + norm.eps).sqrt()
    shape = (-1, *[1] * (x.dim() - 1))
    out = out * (weight.detach().double().reshape(shape) + norm.offset) + bias.detach().double().reshape(shape)
    return out.movedim(0, norm.dim)


def gap(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / b.abs().max())


def shape_of(dim: int) -> tuple[int, ...]:
    return {-1: (2, 5, C), -2: (2, C, 7), -3: (2, C, 4, 3)}[dim]


@every_form
@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_it_is_the_formula(centred: bool, dim: int, positions: bool, mean: float, offset: float) -> None:
    norm = build(centred=centred, dim=dim, positions=positions, offset=offset)
    x = (draw(*shape_of(dim)) + mean).float()
    assert gap(norm(x), naive(norm, x)) < 1e-6
    norm = build(torch.float64, centred=centred, dim=dim, positions=positions, offset=offset)
    assert gap(norm(x.double()), naive(norm, x)) < 1e-13 * max(mean, 1)


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_one_view_of_all_channels_is_the_plain_norm(mean: float) -> None:
    weight, bias = affine(dtype=torch.float64)
    x, maps = draw(4, 7, C) + mean, draw(4, C, 5, 3) + mean

    def one(**options: object) -> ViewNorm:
        return ViewNorm(*uniform(), weight=weight, bias=bias, eps=EPS, **options)  # type: ignore[arg-type]

    assert gap(one()(x), F.layer_norm(x, (C,), weight, bias, EPS)) < 1e-12
    assert gap(one(centred=False)(x), F.rms_norm(x, (C,), weight, EPS) + bias) < 1e-12
    assert gap(one(dim=-3, positions=True)(maps), F.group_norm(maps, 1, weight, bias, EPS)) < 1e-12
    plain = F.layer_norm(maps.movedim(1, -1), (C,), weight, bias, EPS).movedim(-1, 1)
    assert gap(one(dim=-3)(maps), plain) < 1e-12


@every_form
def test_with_nothing_shared_every_model_has_its_own_norm(centred: bool, dim: int, positions: bool) -> None:
    sizes, start = (9, 15), 0
    views, shares = torch.zeros(2, C), torch.zeros(2, C)
    for v, size in enumerate(sizes):
        views[v, start : start + size], shares[v, start : start + size] = 1 / size, 1
        start += size
    weight, bias = affine()
    options = {"eps": EPS, "centred": centred, "dim": dim, "positions": positions}
    joint = ViewNorm(views, shares, weight=weight, bias=bias, **options)  # type: ignore[arg-type]
    x = draw(*shape_of(dim), dtype=torch.float32)
    parts = []
    for part, w, b in zip(x.split(sizes, dim), weight.split(sizes), bias.split(sizes), strict=True):
        own = ViewNorm(*uniform(len(w)), weight=nn.Parameter(w), bias=nn.Parameter(b), **options)  # type: ignore[arg-type]
        parts.append(own(part))
    assert gap(joint(x), torch.cat(parts, dim)) < 1e-6


def test_parameters_keep_their_names_and_shapes() -> None:
    weight, bias = (nn.Parameter(p.detach().reshape(C, 1, 1)) for p in affine())
    norm = ViewNorm(*random_views(), weight=weight, bias=bias, dim=-3, weight_name="gamma", bias_name="beta")
    assert dict(norm.named_parameters()) == {"gamma": weight, "beta": bias}
    assert list(norm.state_dict()) == ["gamma", "beta", "views", "shares"]
    x = draw(2, C, 3, 3, dtype=torch.float32)
    assert gap(norm(x), naive(norm, x)) < 1e-6
    norm(x).square().sum().backward()
    assert weight.grad is not None
    assert weight.grad.shape == (C, 1, 1)
    assert bool((weight.grad != 0).all())


def test_without_weight_and_bias() -> None:
    norm = ViewNorm(*random_views(), offset=1.0)
    assert list(norm.state_dict()) == ["views", "shares"]
    assert norm.views.dtype == torch.float32
    ones = ViewNorm(*random_views(), weight=nn.Parameter(torch.ones(C)), bias=nn.Parameter(torch.zeros(C)))
    x = draw(3, C, dtype=torch.float32)
    assert gap(norm(x), ones(x)) < 1e-6


def test_the_text_says_what_it_is() -> None:
    norm = build(centred=False, dim=-3, positions=True, offset=1.0)
    assert norm.extra_repr() == "24 channels, 3 views, eps=1e-05, RMS norm, dim=-3, over all positions, offset=1.0"
    assert repr(build()) == "ViewNorm(24 channels, 3 views, eps=1e-05, layer norm)"


@every_form
def test_copies_and_state_dicts(centred: bool, dim: int, positions: bool) -> None:
    norm = build(centred=centred, dim=dim, positions=positions)
    x = draw(*shape_of(dim), dtype=torch.float32)
    assert torch.equal(copy.deepcopy(norm)(x), norm(x))
    weight, bias = nn.Parameter(torch.zeros(C)), nn.Parameter(torch.zeros(C))
    options = {"eps": EPS, "centred": centred, "dim": dim, "positions": positions}
    other = ViewNorm(torch.full((V, C), 1 / C), torch.full((V, C), 1 / V), weight=weight, bias=bias, **options)  # type: ignore[arg-type]
    other.load_state_dict(norm.state_dict())
    assert torch.equal(other(x), norm(x))


@every_form
def test_gradients(centred: bool, dim: int, positions: bool) -> None:
    norm = build(dtype=torch.float64, centred=centred, dim=dim, positions=positions, offset=1.0)
    x = draw(*shape_of(dim)).requires_grad_()

    def of(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(of, (x, *affine(dtype=torch.float64)), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_form
def test_half_precision(dtype: torch.dtype, centred: bool, dim: int, positions: bool) -> None:
    """The statistics are taken in single precision: what is lost is the rounding of weights, inputs and outputs."""
    norm = build(centred=centred, dim=dim, positions=positions)
    x = (draw(*shape_of(dim)) * 300).to(dtype)
    step = torch.finfo(dtype).eps
    mixed = norm(x)
    assert mixed.dtype == dtype
    assert gap(mixed, naive(norm, x)) < 2 * step
    half = copy.deepcopy(norm).to(dtype)
    assert half.views.dtype == dtype
    assert half(x).dtype == dtype
    assert gap(half(x), naive(norm, x)) < 4 * step


def test_uniform_views_lose_nothing_in_half_precision() -> None:
    norm = ViewNorm(*uniform(), eps=EPS)
    x = draw(5, C, dtype=torch.float32)
    assert gap(copy.deepcopy(norm).bfloat16()(x), norm(x)) < 1e-6


def test_autocast_leaves_the_statistics_alone() -> None:
    norm = build()
    x = draw(4, 5, C, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(norm(x), norm.forward(x))
        found = norm(x)
    assert found.dtype == torch.float32
    assert torch.equal(found, norm(x))


def test_the_meta_device() -> None:
    with torch.device("meta"):
        empty = nn.Parameter(torch.empty(C))
        norm = ViewNorm(torch.empty(V, C), torch.empty(V, C), weight=empty)
        assert norm(torch.empty(2, 5, C)).shape == (2, 5, C)
    moved = build().to("meta")
    assert moved(torch.empty(2, C, device="meta")).is_meta


@every_form
def test_torch_export(centred: bool, dim: int, positions: bool) -> None:
    norm = build(centred=centred, dim=dim, positions=positions).eval()
    x = draw(*shape_of(dim), dtype=torch.float32)
    program = torch.export.export(norm, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)
    larger = draw(7, *shape_of(dim)[1:], dtype=torch.float32)
    assert gap(program.module()(larger), norm(larger)) < 1e-6


@pytest.mark.parametrize(("centred", "dim", "positions"), FORMS[::3])  # every dim, with and without the rest
def test_onnx(centred: bool, dim: int, positions: bool, tmp_path: Path) -> None:
    """The export runs the file and compares, on batches of other sizes too."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    norm = build(centred=centred, dim=dim, positions=positions)
    x = draw(*shape_of(dim), dtype=torch.float32)
    assert pf.export_onnx(norm, x, tmp_path / "norm.onnx").exists()


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_torch_compile() -> None:
    """One form to machine code, which takes a C++ compiler half a minute; both as graphs without a break."""
    maps = build(centred=False, dim=-3, positions=True)
    for backend, norm, x in (
        ("inductor", build(), draw(2, 5, C)),
        ("aot_eager", build(), draw(2, 5, C)),
        ("aot_eager", maps, draw(2, C, 4, 3)),
    ):
        compiled = torch.compile(norm, fullgraph=True, backend=backend)
        assert gap(compiled(x.float()), norm(x.float())) < 1e-6


def test_what_does_not_fit_is_an_error() -> None:
    views, shares = random_views()
    with pytest.raises(ValueError, match="both are \\(views × channels\\)"):
        ViewNorm(views, shares[:, 1:])
    with pytest.raises(ValueError, match="weight has 5 entries for 24 channels"):
        ViewNorm(views, shares, weight=nn.Parameter(torch.ones(5)))
    with pytest.raises(ValueError, match="every row of views sums to one"):
        ViewNorm(2 * views, shares)
    with pytest.raises(ValueError, match="every column of shares sums to one"):
        ViewNorm(views, shares / 2)
    with pytest.raises(ValueError, match="count the dimension of the channels from the end"):
        ViewNorm(views, shares, dim=1)


def test_it_is_found_in_the_package() -> None:
    assert pf.nn.ViewNorm is ViewNorm


@every_form
def test_without_gradients_it_computes_the_same_and_leaves_its_input_alone(
    centred: bool, dim: int, positions: bool
) -> None:
    norm = build(centred=centred, dim=dim, positions=positions)
    x = draw(*shape_of(dim), dtype=torch.float32)
    before = x.clone()
    with torch.no_grad():
        assert gap(norm(x), naive(norm, x)) < 1e-6
    with torch.inference_mode():
        assert gap(norm(x), naive(norm, x)) < 1e-6
    assert torch.equal(x, before)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    with torch.no_grad():
        assert gap(norm(strided), naive(norm, x)) < 1e-6
