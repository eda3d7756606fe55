"""Fused models leave PyTorch: torch.export and ONNX give the same outputs."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.blocks import BlockLayer
from partialfusion.errors import CheckpointError, OptionError, TraceError, VerificationError
from partialfusion.io import onnx as export
from partialfusion.io.onnx import export_onnx
from zoo import STIFF, ZOO, Exhibit, error, identical, mlp, randomised, snapshot

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

BLOCKS = [("mlp", "partial-ot"), ("mlp", "cluster"), ("vgg-bn", "cluster"), ("resnet", "partial-ot")]
everything = pytest.mark.parametrize("exhibit", [*ZOO.values(), *STIFF.values()], ids=[*ZOO, *STIFF])


def fused(exhibit: Exhibit) -> nn.Module:
    return pf.fuse([exhibit.model(0), exhibit.model(1)], exhibit.inputs(), alpha=0.4).model


def run_onnx(path: Path, *inputs: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    feeds = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return [torch.from_numpy(y) for y in session.run(None, feeds)]


@everything
def test_the_onnx_file_computes_the_fused_model(exhibit: Exhibit, tmp_path: Path) -> None:
    model = fused(exhibit).train()
    before, modes = snapshot(model), [m.training for m in model.modules()]
    path = export_onnx(model, exhibit.inputs(), tmp_path / "fused.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["fused.onnx"]
    assert identical(before, model)
    assert modes == [m.training for m in model.modules()]
    onnx.checker.check_model(str(path), full_check=True)
    model.eval()
    for size in (1, 4, 7):
        x = torch.randn(size, *exhibit.shape)
        (found,) = run_onnx(path, x)
        assert error(found, model(x)) < 1e-5


@pytest.mark.parametrize(("name", "method"), BLOCKS)
def test_the_onnx_file_computes_the_block_model(name: str, method: str, tmp_path: Path) -> None:
    exhibit = ZOO[name]
    result = pf.fuse([exhibit.model(s) for s in range(3)], exhibit.inputs(), alpha=0.4, method=method)
    model = pf.to_blocks(result, exhibit.inputs())
    assert any(isinstance(m, BlockLayer) for m in model.modules())
    path = export_onnx(model, exhibit.inputs(), tmp_path / "blocks.onnx")
    x = torch.randn(5, *exhibit.shape)
    (found,) = run_onnx(path, x)
    assert error(found, result.model(x)) < 1e-5
    weights = sum(math.prod(w.dims) for w in onnx.load(path).graph.initializer if len(w.dims) > 1)
    assert weights < sum(p.numel() for p in result.model.parameters() if p.dim() > 1)


@everything
def test_torch_export_computes_the_fused_model(exhibit: Exhibit) -> None:
    model = fused(exhibit).eval()
    batch = torch.export.Dim("batch")
    strict = exhibit is STIFF["transformer"]  # it takes len(x), which is a constant otherwise
    program = torch.export.export(model, (exhibit.inputs(),), dynamic_shapes=({0: batch},), strict=strict)
    for size in (2, 4, 7):
        x = torch.randn(size, *exhibit.shape)
        assert error(program.module()(x), model(x)) < 1e-6


class Several(nn.Module):
    """A float and an integer input in the batch, a number that is not, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.pixels, self.out = nn.Embedding(7, 6), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, word: Tensor, shift: Tensor) -> dict[str, Tensor]:
        h = torch.relu(self.pixels(x)) + self.words(word)
        return {"out": self.out(h) + shift, "hidden": h}


@pytest.mark.parametrize("batch", [1, 3])
def test_several_inputs_and_outputs_from_a_batch_of_any_size(tmp_path: Path, batch: int) -> None:
    model = randomised(Several(), 0)
    inputs = torch.randn(batch, 4), torch.arange(batch), torch.randn(())
    path = export_onnx(model, inputs, tmp_path / "m.onnx")
    for size in (1, 2, 5):
        x = torch.randn(size, 4), torch.arange(size), inputs[2]
        expected = model(*x)
        for found, key in zip(run_onnx(path, *x), ("out", "hidden"), strict=True):
            assert error(found, expected[key]) < 1e-5


class Named(nn.Module):
    """Takes keywords, and returns more than its result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        states = torch.tanh(self.first(x))
        return {"logits": self.second(states if scale is None else states * scale), "states": states}


def test_keyword_inputs_in_any_order_and_all_outputs(tmp_path: Path) -> None:
    model, x, scale = Named(), torch.randn(2, 4), torch.rand(2, 8)
    path = export_onnx(model, {"scale": scale, "x": x}, tmp_path / "named.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert {i.name for i in session.get_inputs()} == {"x", "scale"}
    x, scale = torch.randn(5, 4), torch.rand(5, 8)
    found = session.run(None, {"x": x.numpy(), "scale": scale.numpy()})
    for a, b in zip(found, model(x, scale=scale).values(), strict=True):
        assert error(torch.from_numpy(a), b) < 1e-5


def test_a_difference_is_an_error_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = randomised(mlp(), 0), torch.randn(4, 10)
    path = tmp_path / "m.onnx"
    path.write_text("precious")
    true = export._run_file

    def wrong(file: Path, inputs: list[Tensor]) -> list[Tensor]:
        return [y + 1e-2 * y.abs().max() * (len(y) == 5) for y in true(file, inputs)]

    monkeypatch.setattr(export, "_run_file", wrong)
    with pytest.raises(VerificationError, match=r"output 0 .* by 0.01 .* shapes \[\(5, 10\)\]; nothing was written"):
        export_onnx(model, x, path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert path.read_text() == "precious"
    export_onnx(model, x, path, check=False)
    assert error(run_onnx(path, x)[0], model(x)) < 1e-5


class Fixed(nn.Module):
    """Its code insists on four samples."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + torch.arange(4.0)[:, None]


def test_a_result_is_written_as_its_model(tmp_path: Path) -> None:
    models = [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)) for _ in range(2)]
    x = torch.randn(3, 4)
    result = pf.fuse(models, x, alpha=0.5)
    (found,) = run_onnx(pf.export_onnx(result, x, tmp_path / "result.onnx"), x)
    assert torch.allclose(found, result.model(x), atol=1e-5)
    with pytest.raises(OptionError, match="the model is a dict: pass what fuse or prune returned, or a module"):
        pf.export_onnx({}, x, tmp_path / "none.onnx")


def test_a_fixed_batch(tmp_path: Path) -> None:
    model, x = randomised(Fixed(), 0), torch.randn(4, 10)
    with pytest.raises(TraceError, match="dynamic_batch=False"):
        export_onnx(model, x, tmp_path / "m.onnx")
    path = export_onnx(model, x, tmp_path / "m.onnx", dynamic_batch=False)
    assert error(run_onnx(path, x)[0], model(x)) < 1e-5


class Lost(nn.Module):
    """Its path depends on the numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="Lost cannot be exported to ONNX"):
        export_onnx(Lost(), torch.randn(4, 10), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    export_onnx(randomised(mlp(), 0), torch.randn(4, 10), tmp_path / "m.onnx")
    assert capfd.readouterr() == ("", "")


def test_large_models_take_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = pytest.importorskip("torch.onnx._internal.exporter._onnx_program")
    monkeypatch.setattr(programs, "_LARGE_MODEL_THRESHOLD", 100)
    model, x = randomised(mlp(), 0), torch.randn(4, 10)
    path = export_onnx(model, x, tmp_path / "m.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert error(run_onnx(path, x)[0], model(x)) < 1e-5


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OptionError, match=f"needs {package}, .* pip install 'partialfusion\\[onnx\\]'"):
        export_onnx(randomised(mlp(), 0), torch.randn(4, 10), tmp_path / "m.onnx")
    if package == "onnxruntime":
        export_onnx(randomised(mlp(), 0), torch.randn(4, 10), tmp_path / "m.onnx", check=False)


def test_what_onnxruntime_cannot_run(tmp_path: Path) -> None:
    model, x = randomised(mlp(), 0).bfloat16(), torch.randn(4, 10, dtype=torch.bfloat16)
    with pytest.raises(VerificationError, match="Sequential does not run .* check=False"):
        export_onnx(model, x, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    assert export_onnx(model, x, tmp_path / "m.onnx", check=False).exists()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(export.os, "replace", full)
    with pytest.raises(CheckpointError, match="m.onnx cannot be written: .*No space left"):
        export_onnx(randomised(mlp(), 0), torch.randn(4, 10), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    model, x = randomised(mlp(), 0), torch.randn(4, 10)
    (tmp_path / "folder.onnx").mkdir()
    for name, why in (("m.pt", "end in .onnx"), ("folder.onnx", "is a folder"), ("no/m.onnx", "no folder")):
        with pytest.raises(CheckpointError, match=why):
            export_onnx(model, x, tmp_path / name)
