"""Stored fusions: what is saved is what is loaded, bit for bit, and zero blocks are not stored."""

from __future__ import annotations

import copy
import json
import os
import stat
from functools import cache
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import partialfusion as pf
from kernels.test_record import same_plan
from partialfusion.core.inputs import Inputs
from partialfusion.core.modules import named_tensors
from partialfusion.errors import CheckpointError, OptionError
from partialfusion.fusing.conform import conformed
from partialfusion.io.digest import state_digest
from partialfusion.io.storage import inspect, load, load_plan, save
from partialfusion.surgery import analytic, apply
from zoo import STIFF, ZOO, identical, mlp, randomised, snapshot

ALL = {**ZOO, **STIFF}
every = pytest.mark.parametrize("name", ALL)


@cache
def fused(name: str, alpha: float, *, models: int = 2, unequal: bool = False, method: str = "partial-ot") -> pf.Fusion:
    blueprint = None if unequal else ALL[name].blueprint
    return pf.fuse(sources(name, models, unequal), ALL[name].inputs(), alpha=alpha, method=method, blueprint=blueprint)


def sources(name: str, models: int = 2, unequal: bool = False) -> list[nn.Module]:
    exhibit = ALL[name]
    return [exhibit.model(k, exhibit.widths[1] if unequal and k == 0 else None) for k in range(models)]


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    """Every parameter and buffer, those that are not in the state dict too, with the sign of zeros."""
    left, right = named_tensors(a), named_tensors(b)
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and left[n].shape == right[n].shape and bits(left[n]) == bits(right[n])
        for n in left
    )


def check_round_trip(result: pf.Fusion, x: Tensor, into: nn.Module, path: Path) -> nn.Module:
    """Save, load, compare; `into` stays as it was."""
    before, numbers = snapshot(into), [dict(vars(m)) for m in into.modules()]
    save(result, path)
    loaded = load(path, into=into)
    assert identical(before, into)
    assert [{k: v for k, v in vars(m).items() if type(v) is int} for m in into.modules()] == [
        {k: v for k, v in held.items() if type(v) is int} for held in numbers
    ]
    assert type(loaded) is type(result.model)
    assert same_bits(loaded, result.model)
    assert torch.equal(loaded.eval()(x), result.model.eval()(x))
    assert same_plan(result.plan, load_plan(path))
    return loaded


def stored_parameters(path: Path, model: nn.Module) -> int:
    content = safetensors.torch.load_file(path)
    return sum(content[n].numel() for n, _ in model.named_parameters())


@every
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_two_models(name: str, alpha: float, tmp_path: Path) -> None:
    result, path = fused(name, alpha), tmp_path / "a.safetensors"
    check_round_trip(result, ALL[name].inputs(), ALL[name].model(7), path)
    assert stored_parameters(path, result.model) == result.count.effective
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


@every
def test_three_models(name: str, tmp_path: Path) -> None:
    result, path = fused(name, 0.3, models=3), tmp_path / "a.safetensors"
    check_round_trip(result, ALL[name].inputs(), ALL[name].model(7), path)
    assert stored_parameters(path, result.model) == result.count.effective


@every
@pytest.mark.parametrize("width", [0, 1])
def test_unequal_widths_and_instances_of_any_width(name: str, width: int, tmp_path: Path) -> None:
    exhibit = ALL[name]
    result, path = fused(name, 0.3, unequal=True), tmp_path / "a.safetensors"
    check_round_trip(result, exhibit.inputs(), exhibit.model(7, exhibit.widths[width]), path)
    assert stored_parameters(path, result.model) == result.count.effective


@pytest.mark.parametrize("method", ["average", "permutation", "ot"])
def test_other_methods(method: str, tmp_path: Path) -> None:
    check_round_trip(
        fused("resnet", 0.0, method=method), ALL["resnet"].inputs(), ALL["resnet"].model(7), tmp_path / "a.safetensors"
    )


def test_split_channels_of_the_mass_convention(tmp_path: Path) -> None:
    exhibit = ALL["vgg-bn"]
    result = pf.fuse(sources("vgg-bn", unequal=True), exhibit.inputs(), alpha=0.3, convention="mass")
    check_round_trip(result, exhibit.inputs(), exhibit.model(7), tmp_path / "a.safetensors")


class Odd(nn.Module):
    """Tied weights, an index table, a counter, a buffer that is not in the state dict, and a width in the code."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(6, width)
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)
        self.two.weight = self.one.weight
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("order", torch.tensor([2, 0, 1, 4, 3, 5]))
        self.register_buffer("keep", torch.tensor([True, False, True, True, True, True]))
        self.register_buffer("gain", torch.tensor([1.5]), persistent=False)
        self.last = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x[:, self.order] * self.keep))
        x = torch.relu(self.one(x).reshape(-1, self.width))
        return self.last(self.norm(torch.relu(self.two(x)))) * self.gain


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("width", [8, 11])
def test_ties_buffers_and_attributes(alpha: float, width: int, tmp_path: Path) -> None:
    models, x = [randomised(Odd(), k) for k in (0, 1)], torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for model in models:
        model.norm.num_batches_tracked.fill_(2**40 + 1)
        model.gain.fill_(0.7)
    result = pf.fuse(models, x, alpha=alpha)
    loaded = check_round_trip(result, x, randomised(Odd(width), 7), tmp_path / "a.safetensors")
    assert loaded.two.weight is loaded.one.weight
    assert loaded.width == result.model.width
    assert loaded.norm.num_batches_tracked == 2**40 + 1
    assert loaded.gain == 0.7
    assert result.model.width == result.plan["first"].width == 8 * (1 + alpha)


def test_parametrised_modules(tmp_path: Path) -> None:
    def build(seed: int) -> nn.Module:
        first = nn.utils.parametrizations.weight_norm(nn.Linear(10, 8))
        return randomised(nn.Sequential(first, nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 4)), seed)

    x = ALL["mlp"].inputs()
    result = pf.fuse([build(0), build(1)], x, alpha=1.0)
    assert result.plan["2"].width == 14
    check_round_trip(result, x, build(7), tmp_path / "a.safetensors")
    restored = pf.restore(tmp_path / "a.safetensors", [build(0), build(1)], x)
    assert torch.equal(restored.model(x), result.model(x))


def test_modules_that_compute_their_weights(tmp_path: Path) -> None:
    """The result has parameters of the same names, and a class that does not compute with them."""

    class Centred(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)

    def build(seed: int) -> nn.Module:
        return randomised(nn.Sequential(nn.Linear(10, 8), nn.ReLU(), Centred(8, 7), nn.ReLU(), nn.Linear(7, 4)), seed)

    x = ALL["mlp"].inputs()
    result = pf.fuse([build(0), build(1)], x, alpha=1.0)
    assert result.plan["2"].width == 14
    check_round_trip(result, x, build(7), tmp_path / "a.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_other_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    models = [m.to(dtype) for m in sources("resnet")]
    x = ALL["resnet"].inputs().to(dtype)
    result = pf.fuse(models, x, alpha=0.3)
    check_round_trip(result, x, ALL["resnet"].model(7).to(dtype), tmp_path / "a.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_request(dtype: torch.dtype, tmp_path: Path) -> None:
    result, path = fused("resnet", 0.3), tmp_path / "a.safetensors"
    save(result, path, dtype=dtype)
    content = safetensors.torch.load_file(path)
    assert {content[n].dtype for n, _ in result.model.named_parameters()} == {dtype}
    loaded = load(path, into=ALL["resnet"].model(7))
    rounded = copy.deepcopy(result.model)
    for p in rounded.parameters():
        p.data = p.data.to(dtype).float()
    assert same_bits(loaded, rounded)  # in the instance's precision, and the statistics as they were
    half = load(path, into=ALL["resnet"].model(7).to(dtype))
    assert {t.dtype for t in named_tensors(half).values() if t.is_floating_point()} == {dtype}
    assert inspect(path).dtype == str(dtype).removeprefix("torch.")


def test_narrowing_never_widens_and_never_overflows(tmp_path: Path) -> None:
    models = [m.to(torch.bfloat16) for m in sources("mlp")]
    result = pf.fuse(models, ALL["mlp"].inputs().to(torch.bfloat16), alpha=0.3)
    save(result, path := tmp_path / "a.safetensors", dtype=torch.float32)
    assert {t.dtype for t in safetensors.torch.load_file(path).values()} == {torch.bfloat16}
    large = pf.fuse(sources("mlp"), ALL["mlp"].inputs(), alpha=0.3)
    with torch.no_grad():
        large.model[0].bias[0] = 1e6
    before = path.read_bytes()
    with pytest.raises(OptionError, match="0.bias holds 1e\\+06"):
        save(large, path, dtype=torch.float16)
    assert path.read_bytes() == before
    save(large, path, dtype=torch.bfloat16)
    with pytest.raises(OptionError, match="choose one of"):
        save(large, path, dtype=torch.int8)


@pytest.mark.parametrize("value", [1e-30, float("nan")])
def test_numbers_in_zero_blocks_are_not_lost(value: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = pf.fuse(sources("mlp"), ALL["mlp"].inputs(), alpha=1.0)
    with torch.no_grad():
        assert result.model[2].weight[0, -1] == 0
        result.model[2].weight[0, -1] = value
    save(result, path := tmp_path / "a.safetensors")
    assert "2.weight hold numbers" in caplog.text
    assert same_bits(load(path, into=mlp()), result.model)
    shapes = {n: t.dim() for n, t in safetensors.torch.load_file(path).items()}
    assert (shapes["2.weight"], shapes["5.weight"]) == (2, 1)


def test_a_loaded_plan_applied_again_makes_the_same_model(tmp_path: Path) -> None:
    for name, unequal in (("resnet", False), ("vgg-bn", True), ("grouped", False)):
        models, x = sources(name, 2, unequal), ALL[name].inputs()
        result = fused(name, 0.3, unequal=unequal)
        save(result, path := tmp_path / "a.safetensors")
        plan = load_plan(path)
        blueprints = conformed(models, result.blueprint, Inputs.of(x))
        again = apply(models, blueprints, plan, Inputs.of(x))
        analytic(again, models, blueprints)
        assert same_bits(again.model, result.model)


def test_the_size_of_large_models(tmp_path: Path) -> None:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(300, 700), nn.GELU(), nn.Linear(700, 700), nn.GELU(), nn.Linear(700, 10))

    models = [randomised(wide(), k) for k in (0, 1)]
    result = pf.fuse(models, torch.randn(2, 300), alpha=0.4, align="greedy", check=False)
    assert result.count.effective > 1_000_000
    path = tmp_path / "a.safetensors"
    for dtype, width in ((None, 4), (torch.float16, 2)):
        save(result, path, dtype=dtype)
        assert 1 < path.stat().st_size / (width * result.count.effective) < 1.02


def test_where_it_came_from(tmp_path: Path) -> None:
    models, path = sources("mlp"), tmp_path / "a.safetensors"
    result = pf.fuse(models, ALL["mlp"].inputs(), alpha={"0": 0.5, "2": 1.0}, mix=[0.3, 0.7], seed=5)
    save(result, path)
    header = inspect(path)
    assert header.recipe["alpha"] == {"0": 0.5, "2": 1.0}
    assert header.recipe["mix"] == [0.3, 0.7]
    options = {"method": "partial-ot", "features": "weights", "convention": "value", "seed": 5, "align": "fixed-point"}
    assert {k: header.recipe[k] for k in options} == options
    assert (header.version, header.torch) == (pf.__version__, torch.__version__)
    assert [s.sha256 for s in header.sources] == [state_digest(m) for m in models]
    assert [s.model for s in header.sources] == ["Sequential"] * 2
    assert "partial-ot" in str(header)
    assert str(result.plan["0"].fused) in str(header)
    metadata = safetensors.safe_open(path, "pt").metadata()
    assert json.loads(metadata["partialfusion.record"])["plan"]["spaces"]["0"]["fused"] == result.plan["0"].fused


def test_the_same_fusion_is_the_same_file(tmp_path: Path) -> None:
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        save(pf.fuse(sources("resnet"), ALL["resnet"].inputs(), alpha=0.3), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_hashes_are_of_the_content() -> None:
    model = ALL["resnet"].model(0)
    value = state_digest(model)
    assert value == state_digest(copy.deepcopy(model).to(memory_format=torch.channels_last))
    assert value != state_digest(ALL["resnet"].model(1))
    for change in (
        lambda m: m.fc.weight.data[0, 0].add_(1e-7),
        lambda m: m.bn1.num_batches_tracked.add_(1),
        lambda m: m.half(),
        lambda m: setattr(m.fc, "weight", nn.Parameter(m.fc.weight.data.reshape(-1, 5))),
        lambda m: setattr(m, "fc2", m.__dict__["_modules"].pop("fc")),
    ):
        other = copy.deepcopy(model)
        change(other)
        assert state_digest(other) != value


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    result = fused("mlp", 0.3)
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a.safetensors", tmp_path / "link.safetensors"
    save(result, target)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask
    target.chmod(0o640)
    link.symlink_to(target)
    save(result, link)
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert same_bits(load(link, into=mlp()), result.model)


def test_a_model_that_was_changed_since_is_not_saved(tmp_path: Path) -> None:
    result = pf.fuse(sources("mlp"), ALL["mlp"].inputs(), alpha=0.3)
    result.model[7] = nn.Linear(3, 5)
    with pytest.raises(CheckpointError, match=r"7.weight has shape \(5, 3\)"):
        save(result, tmp_path / "a.safetensors")
    del result.model[7]
    with pytest.raises(CheckpointError, match="7.weight has shape None"):
        save(result, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
