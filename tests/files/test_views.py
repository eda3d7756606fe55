"""Stored fusions with view norms: they are put back in place, with their settings, and all else works with them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import partialfusion as pf
from files.test_damage import with_record
from files.test_storage import same_bits
from partialfusion.errors import CheckpointError
from partialfusion.io import header
from partialfusion.io.storage import load_dense, resave
from partialfusion.io.stored import open_stored
from partialfusion.kernels.record import expanded, squeezed
from partialfusion.nn import ViewNorm
from transformer.zoo import Encoder, randomised


class Gain(nn.Module):
    """An RMS norm by hand that multiplies by one plus its gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-4).rsqrt() * (1 + self.gain)


class Stream(nn.Module):
    """A stream with norms of three kinds: layer norm, one by hand, and one without parameters."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Linear(10, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width, eps=1e-3), Gain(width)])
        self.branches = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.last = nn.LayerNorm(width, elementwise_affine=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for norm, branch in zip(self.norms, self.branches, strict=True):
            x = x + branch(norm(x).relu())
        return self.head(self.last(x))


class Maps(nn.Module):
    """Norms across the channels of images, per position and over all of them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(3, width, 3), nn.GroupNorm(1, width)
        self.next, self.head = nn.Conv2d(width, width, 1), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.next(self.norm(x).relu())
        return self.head(x.mean((2, 3)))


MAKE: dict[str, Callable[..., nn.Module]] = {
    "stream": Stream,
    "maps": Maps,
    "encoder": lambda: Encoder(norm_first=False),
    "encoder_pre": lambda: Encoder(norm_first=True),
}
INPUTS = {
    "stream": torch.randn(4, 3, 10, generator=torch.Generator().manual_seed(0)),
    "maps": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)),
    "encoder": torch.randint(3, 97, (2, 6), generator=torch.Generator().manual_seed(0)),
}
INPUTS["encoder_pre"] = INPUTS["encoder"]
every = pytest.mark.parametrize("name", MAKE)


def model(name: str, seed: int, **options: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return randomised(MAKE[name](**options), seed)


@cache
def fused(name: str, alpha: float = 0.5) -> pf.Fusion:
    return pf.fuse([model(name, 0), model(name, 1)], INPUTS[name], alpha=alpha)


def views(found: nn.Module) -> list[str]:
    return [path for path, m in found.named_modules() if isinstance(m, ViewNorm)]


def run(found: nn.Module, name: str) -> Tensor:
    with torch.no_grad():
        return found.eval()(INPUTS[name])


def same(a: nn.Module, b: nn.Module, name: str) -> bool:
    return str(a) == str(b) and same_bits(a, b) and torch.equal(run(a, name), run(b, name))


@every
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_what_is_saved_is_what_is_loaded(name: str, alpha: float, tmp_path: Path) -> None:
    result = fused(name, alpha)
    assert bool(views(result.model)) == (alpha > 0)
    pf.save(result, path := tmp_path / "a.safetensors")
    into = model(name, 7).train()
    loaded = pf.load(path, into=into)
    assert all(m.training for m in loaded.modules())
    assert not views(into)
    assert same(loaded, result.model, name)
    assert sorted(pf.inspect(path).norms) == sorted(views(result.model))
    dense = load_dense(path)
    assert all(torch.equal(dense[n], t) for n, t in result.model.state_dict().items() if n in dense)


def test_with_pytorchs_fast_path(tmp_path: Path) -> None:
    """In evaluation mode without gradients PyTorch may compute an encoder layer in one piece, without our norms."""
    result = fused("encoder")
    pf.save(result, path := tmp_path / "a.safetensors")
    loaded = pf.load(path, into=model("encoder", 7))
    slow = loaded(INPUTS["encoder"])
    torch.testing.assert_close(run(loaded, "encoder"), slow)


@pytest.mark.parametrize("width", [8, 24])
def test_into_other_widths_and_into_a_fused_model(width: int, tmp_path: Path) -> None:
    result = fused("stream")
    pf.save(result, path := tmp_path / "a.safetensors")
    assert same(pf.load(path, into=model("stream", 7, width=width)), result.model, "stream")
    assert same(pf.load(path, into=fused("stream", 1.0).model), result.model, "stream")


def test_a_norm_without_parameters_follows_the_width(tmp_path: Path) -> None:
    result = pf.prune(model("stream", 0), INPUTS["stream"], keep=0.5, method="magnitude")
    assert not views(result.model)
    pf.save(result, path := tmp_path / "a.safetensors")
    assert same(pf.load(path, into=model("stream", 7)), result.model, "stream")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype, tmp_path: Path) -> None:
    result = copy.copy(fused("stream"))
    object.__setattr__(result, "model", copy.deepcopy(result.model).to(dtype))
    pf.save(result, path := tmp_path / "a.safetensors")
    loaded = pf.load(path, into=model("stream", 7).to(dtype))
    x = INPUTS["stream"].to(dtype)
    assert same_bits(loaded, result.model)
    assert torch.equal(loaded.eval()(x), result.model.eval()(x))
    pf.save(fused("stream"), path, dtype=torch.float16)
    narrow = pf.load(path, into=model("stream", 7))
    assert torch.equal(narrow.get_submodule("last").views, fused("stream").model.get_submodule("last").views)


def test_trained_and_saved_again(tmp_path: Path) -> None:
    result, path, again = fused("stream"), tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    pf.save(result, path)
    trained, stored = pf.load(path, into=model("stream", 7)), pf.inspect(path)
    with pf.freeze_zeros(trained, stored):
        optimiser = torch.optim.SGD(trained.parameters(), 1e-2)
        trained(INPUTS["stream"]).square().mean().backward()
        optimiser.step()
    resave(stored, trained, again)
    assert not same(trained, result.model, "stream")
    assert same(pf.load(again, into=model("stream", 8)), trained, "stream")
    assert again.stat().st_size <= path.stat().st_size + 64


@every
def test_restored_with_its_sources_and_as_blocks(name: str, tmp_path: Path) -> None:
    result = fused(name)
    pf.save(result, path := tmp_path / "a.safetensors")
    found = pf.restore(path, result.sources, INPUTS[name])
    assert found.count == result.count
    assert same(found.model, result.model, name)
    opened = open_stored(path, model(name, 7), INPUTS[name])
    for blocks in (pf.to_blocks(found, INPUTS[name]), pf.to_blocks(opened), pf.to_blocks(result, INPUTS[name])):
        torch.testing.assert_close(run(blocks, name), run(result.model, name), rtol=1e-4, atol=1e-5)
        assert same(pf.from_blocks(blocks), result.model, name)
        assert pf.dense_state(blocks).keys() == result.model.state_dict().keys()
    assert sum(p.numel() for p in result.model.parameters()) == result.count.dense


def test_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pf.export_onnx(fused("stream").model, INPUTS["stream"], tmp_path / "a.onnx")


def with_layout(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    def changed(record: dict[str, Any]) -> None:
        layout = json.loads(expanded(record["layout"]))
        change(layout)
        record["layout"] = squeezed(json.dumps(layout).encode())

    with_record(path, changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda norms: norms.pop("last"),
        lambda norms: norms["last"].update(eps="1e-5"),
        lambda norms: norms["last"].update(eps=-1.0),
        lambda norms: norms["last"].update(dim=1),
        lambda norms: norms["last"].update(centred=None),
        lambda norms: norms["last"].update(weight="other"),
        lambda norms: norms["last"].update(colour="red"),
        lambda norms: norms["last"].pop("offset"),
        lambda norms: norms.update(head={**norms["last"]}),
        lambda norms: norms.update(last=3),
    ],
)
def test_damaged_records(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    pf.save(fused("stream"), path := tmp_path / "a.safetensors")
    with_layout(path, lambda layout: change(layout["norms"]))
    with pytest.raises(CheckpointError, match=r"a\.safetensors (is damaged|does not fit)"):
        pf.load(path, into=model("stream", 7))


def test_formats(tmp_path: Path) -> None:
    """Only files with view norms have a new format, which older versions refuse by its number."""
    for alpha, expected in ((0.0, 1), (0.5, 2)):
        pf.save(fused("stream", alpha), path := tmp_path / "a.safetensors")
        with safetensors.safe_open(path, "pt") as file:
            assert json.loads(file.metadata()[header.RECORD])["format"] == expected
    with_layout(path, lambda layout: layout.pop("norms"))
    with pytest.raises(CheckpointError, match="damaged"):
        pf.load(path, into=model("stream", 7))
    with_record(path, lambda record: record.update(format=1))
    with pytest.raises(CheckpointError, match="does not fit"):
        pf.load(path, into=model("stream", 7))


def test_models_without_the_norms(tmp_path: Path) -> None:
    pf.save(fused("stream"), path := tmp_path / "a.safetensors")
    other = model("stream", 7)
    other.last = nn.ModuleDict()  # type: ignore[assignment]
    loaded = pf.load(path, into=other)  # it has the tensors: a norm without parameters is what the file says
    assert views(loaded)
    del other.last
    with pytest.raises(CheckpointError, match="does not fit Stream: there is no norm last; pass a Stream"):
        pf.load(path, into=other)
    plain = tmp_path / "b.safetensors"
    pf.save(fused("stream", 0.0), plain)
    with pytest.raises(CheckpointError, match=r"it lacks: .*views"):
        pf.load(plain, into=fused("stream").model)
