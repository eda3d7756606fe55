"""`convert` and `bench`."""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from calls import CONV, LARGE, SMALL, fails, run, same_state
from torch import Tensor

import partialfusion as pf
from partialfusion.blocks import compare as comparing
from partialfusion.cli.bench import bench
from partialfusion.cli.fuse import fuse
from partialfusion.cli.jobs import Job, run_job
from partialfusion.core.progress import ProgressCallback
from partialfusion.io.checkpoints import load_into, load_model, load_state, save_state
from partialfusion.io.factories import build


@pytest.fixture
def fused(folder: Path) -> dict[str, Tensor]:
    """The state of f.safetensors, a fusion of two small models."""
    args = ("fuse", SMALL, "a.safetensors", "b.pt", "--input", "2,6", "--alpha", "0.5", "--out", "f.safetensors")
    assert run(*args).exit_code == 0
    return load_state("f.safetensors")


def convert(*args: object) -> None:
    result = run("convert", SMALL, *args)
    assert result.exit_code == 0, result.stderr


def test_there_and_back(fused: dict[str, Tensor]) -> None:
    convert("f.safetensors", "--out", "dense.safetensors")
    convert("dense.safetensors", "--out", "dense.pt")
    convert("dense.pt", "--plan", "f.safetensors", "--form", "blocks", "--out", "back.safetensors")
    for path in ("dense.safetensors", "dense.pt"):
        same_state(load_state(path), fused)
    assert Path("back.safetensors").read_bytes() == Path("f.safetensors").read_bytes()


def test_half_precision(fused: dict[str, Tensor]) -> None:
    convert("f.safetensors", "--form", "blocks", "--dtype", "float16", "--out", "half.safetensors")
    assert pf.inspect("half.safetensors").dtype == "float16"
    assert os.path.getsize("half.safetensors") < os.path.getsize("f.safetensors")
    convert("f.safetensors", "--dtype", "bfloat16", "--out", "half.pt")
    for path, dtype in (("half.safetensors", torch.float16), ("half.pt", torch.bfloat16)):
        same_state(load_state(path), {name: t.to(dtype) for name, t in fused.items()})


def test_buffers_keep_their_precision(folder: Path) -> None:
    save_state(build(CONV), "conv.pt")
    assert run("convert", CONV, "conv.pt", "--dtype", "float16", "--out", "half.pt").exit_code == 0
    state = load_state("half.pt")
    assert state["0.weight"].dtype == torch.float16
    assert state["1.running_var"].dtype == torch.float32
    load_into(build(CONV), "half.pt")


def test_trained_since(fused: dict[str, Tensor]) -> None:
    model = load_model(SMALL, "f.safetensors")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    save_state(model, "tuned.pt")
    convert("tuned.pt", "--plan", "f.safetensors", "--form", "blocks", "--out", "tuned.safetensors")
    same_state(load_state("tuned.safetensors"), {name: 2 * t for name, t in fused.items()})
    assert pf.inspect("tuned.safetensors").sources == pf.inspect("f.safetensors").sources


@pytest.mark.parametrize("form", ["dense", "blocks"])
def test_onnx(fused: dict[str, Tensor], form: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    convert("f.safetensors", "--form", form, "--input", "2,6", "--out", "f.onnx")
    session = runtime.InferenceSession("f.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(3, 6)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(found), load_model(SMALL, "f.safetensors")(x))


def test_convert_json(fused: dict[str, Tensor]) -> None:
    document = json.loads(run("convert", SMALL, "f.safetensors", "--out", "d.pt", "--json").stdout)
    assert document["bytes"] == os.path.getsize("d.pt")
    assert document["parameters"] == sum(t.numel() for t in fused.values())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((SMALL, "f.safetensors", "--out", "d.txt"), "must end in"),
        ((SMALL, "f.safetensors", "--out", "nowhere/d.pt"), "create it first"),
        ((SMALL, "f.safetensors", "--out", "nowhere/d.onnx", "--input", "2,6"), "no folder"),
        ((SMALL, "f.safetensors", "--out", "f.safetensors"), "is an input"),
        ((SMALL, "none.pt", "--out", "d.pt"), "no such file"),
        ((SMALL, "f.safetensors", "--form", "sparse", "--out", "d.pt"), "form='sparse' is not known"),
        ((SMALL, "f.safetensors", "--form", "blocks", "--out", "d.pt"), "blocks are stored as .safetensors"),
        ((SMALL, "a.safetensors", "--form", "blocks", "--out", "d.safetensors"), "give that file as --plan"),
        (
            (SMALL, "a.safetensors", "--plan", "f.safetensors", "--out", "d.pt"),
            "a.safetensors does not fit",
        ),
        ((SMALL, "f.safetensors", "--out", "d.onnx"), "give --input"),
        ((SMALL, "f.safetensors", "--input", "2,7", "--out", "d.onnx"), "cannot be exported"),
        ((CONV, "f.safetensors", "--out", "d.pt"), "does not fit"),
        (("nets:none", "f.safetensors", "--out", "d.pt"), "no module 'nets'"),
    ],
)
def test_bad_conversions(fused: dict[str, Tensor], args: tuple[str, ...], message: str) -> None:
    if message == "cannot be exported":
        pytest.importorskip("onnxscript")
    before = {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()}
    fails(run("convert", *args), message)
    assert {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()} == before


# bench


@pytest.mark.parametrize("what", [("--alpha", "0.5"), ("f.safetensors",)])
def test_bench(fused: dict[str, Tensor], what: tuple[str, ...]) -> None:
    result = run("bench", SMALL, *what, "--input", "2,6", "--seconds", "0", "--threads", "1", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert [s["form"] for s in document["speeds"]] == ["single", "ensemble", "dense", "blocks", "auto"]
    sizes = {s["form"]: s["parameters"] for s in document["speeds"]}
    assert sizes["dense"] == sum(t.numel() for t in fused.values())
    assert sizes["single"] < sizes["blocks"] < sizes["dense"]
    assert document["threads"] == 1


def test_bench_takes_the_arguments_of_fuse(folder: Path) -> None:
    np.save("d.npy", np.random.default_rng(0).normal(size=(40, 6)))
    args = (SMALL, "a.safetensors", "b.pt", "--input", "2,6", "--budget", "1.2", "--data", "d.npy", "--mix", "0.3")
    result = run("bench", *args, "--method", "cluster", "--seconds", "0", "--json")
    assert result.exit_code == 0, result.stderr
    models = [load_model(SMALL, path) for path in ("a.safetensors", "b.pt")]
    data = [torch.from_numpy(np.load("d.npy")).float()]
    expected = pf.fuse(models, torch.ones(2, 6), budget=1.2, data=data, mix=0.3, method="cluster")
    sizes = {s["form"]: s["parameters"] for s in json.loads(result.stdout)["speeds"]}
    assert (sizes["dense"], sizes["blocks"]) == (expected.count.dense, expected.count.effective)
    shapeless = [word for word in args if word not in ("--input", "2,6")]  # the first batch of the data is timed
    again = run("bench", *shapeless, "--method", "cluster", "--batch", "8", "--seconds", "0", "--json")
    assert again.exit_code == 0, again.stderr
    assert {s["form"]: s["parameters"] for s in json.loads(again.stdout)["speeds"]} == sizes
    fails(run("bench", SMALL), "give --input SHAPE, or --data FILE")
    own = ("checkpoints", "out", "dtype", "quiet", "shard_size", "cluster")  # about files that fuse writes
    shared = [p for p in inspect.signature(fuse).parameters if p not in own]
    assert set(shared) <= set(inspect.signature(bench).parameters)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((), "greedy"),  # new models have nothing alike
        (("--align", "fixed-point"), "fixed-point"),
        (("a.safetensors", "b.pt"), "fixed-point"),
    ],
)
def test_bench_aligns_as_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], wanted: str
) -> None:
    used = []

    def noted(job: Job, report: ProgressCallback) -> pf.Fusion:
        used.append(job.options["align"])
        return run_job(job, report)

    monkeypatch.setattr(sys.modules[bench.__module__], "run_job", noted)
    result = run("bench", SMALL, *given, "--input", "2,6", "--seconds", "0")
    assert (result.exit_code, used) == (0, [wanted])


def test_bench_prints_a_table(folder: Path) -> None:
    text = run("bench", LARGE, "--input", "2,6", "--seconds", "0").stdout
    assert [line.split()[0] for line in text.splitlines()[2:7]] == ["single", "ensemble", "dense", "blocks", "auto"]


def test_bad_benches(fused: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    fails(run("bench", "nets:none", "--input", "2,6"), "no module 'nets'")
    fails(run("bench", SMALL, "none.safetensors", "--input", "2,6"), "no such file")
    fails(run("bench", SMALL, "a.safetensors", "--input", "2,6"), "not of a saved fusion")
    fails(run("bench", CONV, "f.safetensors", "--input", "1,3,8,8"), "does not fit")
    fails(run("bench", SMALL, "f.safetensors", "--alpha", "0.5", "--input", "2,6"), "leave one of them out")
    fails(run("bench", SMALL, "f.safetensors", "--budget", "1.2", "--input", "2,6"), "--budget is for models to fuse")
    fails(run("bench", SMALL, "--input", "2,7"), "does not run on the example inputs")
    fails(run("bench", SMALL, "--input", "2,6", "--alpha", "2"), "out of range")

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "interleaved_times", stop)
    fails(run("bench", SMALL, "--input", "2,6"), "interrupted", code=130)
