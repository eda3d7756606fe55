"""The command line: the same results as the library, one-line errors, exit codes, nothing half-written."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from calls import CONV, LARGE, MODULE, SMALL, fails, run, same_state
from torch import nn

import partialfusion as pf
from partialfusion import api
from partialfusion.cli.frontier import frontier
from partialfusion.cli.fuse import fuse
from partialfusion.cli.parse import example_inputs
from partialfusion.cli.terminal import TRACEBACK
from partialfusion.errors import OptionError
from partialfusion.io.checkpoints import load_fused, load_model, load_state, save_state
from partialfusion.io.factories import build

COMMANDS = ("demo", "trace", "fuse", "prune", "frontier", "refit", "convert", "bench", "run")
FUSE = ("fuse", SMALL, "a.safetensors", "b.pt", "--input", "2,6")


# Results


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ((), {}),
        (("--alpha", "0.25", "--mix", "0.3,0.7", "--seed", "5"), {"alpha": 0.25, "mix": [0.3, 0.7], "seed": 5}),
        (("--mix", "0.3"), {"mix": [0.3, 0.7]}),
        (("--alpha", "0.4", "--round-to", "2"), {"alpha": 0.4, "round_to": 2}),
        (("--alpha", "0=0.5", "--alpha", "0.25"), {"alpha": {"0": 0.5, "*": 0.25}}),
        (("--alpha", "2=1"), {"alpha": {"2": 1.0}}),
        (("--method", "average"), {"method": "average"}),
        (("--method", "permutation"), {"method": "permutation"}),
        (
            ("--method", "ot", "--align", "greedy", "--convention", "mass"),
            {"method": "ot", "align": "greedy", "convention": "mass"},
        ),
        (("--masses", "incoming"), {"masses": "incoming"}),
        (("--masses", "outgoing", "--method", "ot"), {"masses": "outgoing", "method": "ot"}),
    ],
)
def test_fuse_equals_the_library(folder: Path, options: tuple[str, ...], keywords: dict[str, object]) -> None:
    out = "fused.pt" if "average" in options else "fused.safetensors"
    result = run(*FUSE, "--out", out, *options)
    assert result.exit_code == 0, result.stderr
    models = [load_model(SMALL, path) for path in ("a.safetensors", "b.pt")]
    seed = int(keywords.get("seed", 0))  # type: ignore[call-overload]
    expected = pf.fuse(models, example_inputs(["2,6"], seed), **keywords)
    same_state(load_state(out), expected.model.state_dict())
    assert str(expected.summary()) in result.stdout
    assert result.stderr == ""


def test_every_option_of_the_library_is_on_the_command_line_and_in_recipes(folder: Path) -> None:
    """Except for objects, and for progress, which a command shows by itself."""
    keywords = {p.name for p in inspect.signature(pf.fuse).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert keywords - set(inspect.signature(fuse).parameters) == {"blueprint", "progress"}
    assert {p.name for p in inspect.signature(pf.frontier).parameters.values() if p.kind is p.KEYWORD_ONLY} - set(
        inspect.signature(frontier).parameters
    ) == {"blueprint", "progress", "details"}
    Path("r.yaml").write_text("".join(f"{name}: [[]]\n" for name in sorted(keywords)))
    unknown = re.findall(r"unknown key '(\w+)'", run("run", "r.yaml").stderr)
    assert unknown == ["blueprint", "progress"]


def test_an_entry_of_the_output_is_named(folder: Path) -> None:
    tags = f"{MODULE}:Tags"
    for seed, name in enumerate(("x.safetensors", "y.safetensors")):
        save_state(build(tags, seed=seed), name)
    kinds = {}
    for output in ("tags", "1", None):
        done = run("trace", tags, "--input", "2,6", "--json", *(() if output is None else ("--output", output)))
        kinds[output] = next(s["kind"] for s in json.loads(done.stdout)["spaces"] if s["name"] == "hidden")
    assert kinds == {"tags": "elastic", "1": "rigid", None: "rigid"}
    named = ("--input", "2,6", "--output", "tags")
    fused = run("fuse", tags, "x.safetensors", "y.safetensors", *named, "--alpha", "0.5", "--out", "f.safetensors")
    assert fused.exit_code == 0, fused.stderr
    np.save("data.npy", np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32))
    refit = ("refit", tags, "f.safetensors", "x.safetensors", "y.safetensors", *named, "--data", "data.npy")
    for words in (
        (*refit, "--out", "refitted.safetensors"),
        ("prune", tags, "x.safetensors", *named, "--keep", "0.5", "--out", "small.safetensors"),
        ("bench", tags, "f.safetensors", *named, "--seconds", "0.01"),
    ):
        done = run(*words)
        assert done.exit_code == 0, done.stderr
    assert load_state("f.safetensors")["hidden.weight"].shape == (12, 6)
    assert load_state("small.safetensors")["hidden.weight"].shape == (4, 6)
    fails(run("trace", tags, "--input", "2,6", "--output", "logits"), "its entries are tags, states")
    fails(run("trace", tags, "--input", "2,6", "--output", "f.safetensors"), "the file to write is --out")
    pytest.importorskip("onnxscript")
    done = run("convert", tags, "f.safetensors", *named, "--form", "blocks", "--out", "f.onnx")
    assert done.exit_code == 0, done.stderr


def test_three_models(folder: Path) -> None:
    run(*FUSE[:4], "c.safetensors", "--input", "2,6", "--mix", "0.2,0.3,0.5", "--alpha", "1", "--out", "f.safetensors")
    paths, x = ("a.safetensors", "b.pt", "c.safetensors"), torch.randn(4, 6)
    expected = sum(w * load_model(SMALL, p)(x) for w, p in zip((0.2, 0.3, 0.5), paths, strict=True))
    torch.testing.assert_close(load_fused(build(SMALL), "f.safetensors")(x), expected)


def test_unequal_widths(folder: Path) -> None:
    args = ("fuse", SMALL, "a.safetensors", "large.safetensors", "--input", "2,6", "--out", "f.safetensors")
    fails(
        run(*args),
        "large.safetensors does not fit",
        "(12, 6) in the file and (8, 6) in the model",
        "factory",
    )
    assert not Path("f.safetensors").exists()
    assert run(*args, "--factory", LARGE, "--alpha", "0").exit_code == 0
    assert load_state("f.safetensors")["0.weight"].shape == (12, 6)
    fails(run(*args, "--factory", LARGE, "--factory", LARGE), "2 time(s) for 2 models")


def test_fused_file_can_be_traced_and_fused_again(folder: Path) -> None:
    assert run(*FUSE, "--alpha", "0.5", "--out", "f.safetensors").exit_code == 0
    traced = run("trace", SMALL, "--input", "2,6", "--weights", "f.safetensors", "--json")
    assert [s["width"] for s in json.loads(traced.stdout)["spaces"]] == [12, 12, 3]
    again = run(
        "fuse", SMALL, "f.safetensors", "c.safetensors", "--input", "2,6", "--alpha", "1", "--out", "g.safetensors"
    )
    assert again.exit_code == 0, again.stderr
    assert load_state("g.safetensors")["0.weight"].shape == (20, 6)


def test_printed_lines_load_the_file(folder: Path) -> None:
    result = run(*FUSE, "--out", "f.safetensors")
    lines = [line[4:] for line in result.stdout.splitlines() if line.startswith("    ")]
    assert len(lines) == 3
    scope: dict[str, object] = {}
    sys.path.insert(0, str(folder))
    try:
        exec("\n".join(lines), scope)
    finally:
        sys.path.remove(str(folder))
    same_state(scope["model"].state_dict(), load_state("f.safetensors"))  # type: ignore[attr-defined]


def test_fuse_json_quiet_and_metadata(folder: Path) -> None:
    result = run(*FUSE, "--out", "f.safetensors", "--json", "--alpha", "0=0.5")
    document = json.loads(result.stdout)
    assert document["out"] == "f.safetensors"
    assert document["recipe"]["alpha"] == {"0": 0.5}
    assert [s["after"] for s in document["spaces"]] == [12, 8, 3]
    assert document["ratio"] == document["count"]["dense"] / document["count"]["single"]
    stored = pf.inspect("f.safetensors")
    assert stored.recipe == document["recipe"]
    assert stored.version == pf.__version__
    quiet = run(*FUSE, "--out", "f.safetensors", "--quiet")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")


def test_what_factories_print_stays_off_stdout(folder: Path) -> None:
    result = run("trace", f"{MODULE}:chatty", "--input", "2,6", "--json")
    assert json.loads(result.stdout)["spaces"]
    assert "building …" in result.stderr


@pytest.mark.parametrize("form", ["npy", "pt", "safetensors"])
def test_data(folder: Path, form: str) -> None:
    spec, data = f"{MODULE}:conv", torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    models = [build(spec, seed=s) for s in (0, 1)]
    for model, name in zip(models, ("ca.pt", "cb.pt"), strict=True):
        save_state(model, name)
    if form == "npy":
        np.save("x.npy", data.double().numpy())
    else:
        import safetensors.torch

        torch.save(data, "x.pt")
        safetensors.torch.save_file({"x": data}, "x.safetensors")
    args = ("--data", f"x.{form}", "--batch-size", "4", "--out", "f.safetensors")
    result = run("fuse", spec, "ca.pt", "cb.pt", "--input", "1,3,8,8", *args)
    assert result.exit_code == 0, result.stderr
    expected = pf.fuse(models, example_inputs(["1,3,8,8"], 0), data=list(data.split(4)))
    assert expected.recipe.norm == "recalibrate"
    same_state(load_state("f.safetensors"), expected.model.state_dict())


def test_trace(folder: Path) -> None:
    result = run("trace", SMALL, "--input", "2,6", "--weights", "a.safetensors")
    model = load_model(SMALL, "a.safetensors")
    assert result.stdout == f"{pf.trace(model, torch.ones(2, 6))}\n"
    assert "self-check: not checked" in run("trace", SMALL, "--input", "2,6", "--no-check").stdout
    document = json.loads(run("trace", SMALL, "--input", "2,6", "--json").stdout)
    assert [(s["name"], s["width"], s["kind"]) for s in document["spaces"]] == [
        ("0", 8, "elastic"),
        ("2", 8, "elastic"),
        ("4", 3, "rigid"),
    ]
    assert {"parameter": "2.weight", "axis": 1, "role": "reads", "multiplicity": 1} in document["spaces"][0]["bindings"]


def test_integer_and_several_inputs(folder: Path) -> None:
    assert run("trace", f"{MODULE}:Tokens", "--input", "1,7:int64").exit_code == 0
    assert run("trace", f"{MODULE}:Two", "--input", "1,4", "--input", "1,5").exit_code == 0
    for seed, name in enumerate("xy"):
        save_state(build(f"{MODULE}:Two", seed=seed), f"{name}.pt")
    args = ("fuse", f"{MODULE}:Two", "x.pt", "y.pt", "--input", "1,4", "--input", "1,5", "--out", "f.pt")
    assert run(*args).exit_code == 0
    np.save("d.npy", np.zeros((4, 4), np.float32))
    fails(run(*args, "--data", "d.npy"), "holds 1 tensors (array) where the model takes 2 input(s)")


def test_batches_are_those_of_python(folder: Path) -> None:
    """Batch norms are measured batch by batch, so the batches of --batch are those of torch.split and of loaders."""
    models = [build(CONV, seed=seed).eval() for seed in (0, 1)]
    for model, name in zip(models, ("x.pt", "y.pt"), strict=True):
        save_state(model, name)
    data = torch.randn(21, 3, 8, 8)
    np.save("d.npy", data.numpy())
    args = ("fuse", CONV, "x.pt", "y.pt", "--input", "2,3,8,8", "--data", "d.npy", "--out", "f.pt")
    expected = {}
    for size in (8, 64):
        assert run(*args, "--batch", size).exit_code == 0
        expected[size] = pf.fuse(models, example_inputs(["2,3,8,8"], 0), data=data.split(size)).model
        same_state(load_state("f.pt"), expected[size].state_dict())
    assert not torch.equal(expected[8](data), expected[64](data)), "the batches matter here"


def test_inputs_may_be_left_out_where_there_is_data(folder: Path) -> None:
    models = [load_model(SMALL, path) for path in ("a.safetensors", "b.pt")]
    data = torch.randn(12, 6)
    np.savez("d.npz", x=data.double().numpy())
    np.savez("v.npz", x=data.numpy(), labels=np.arange(12) % 3)
    fuse = ("fuse", SMALL, "a.safetensors", "b.pt")
    result = run(*fuse, "--data", "d.npz", "--out", "f.safetensors")
    assert result.exit_code == 0, result.stderr
    expected = pf.fuse(models, data=[data])
    same_state(load_state("f.safetensors"), expected.model.state_dict())
    sources = ("a.safetensors", "b.pt", "--data", "d.npz")
    assert run("refit", SMALL, "f.safetensors", *sources, "--out", "r.safetensors").exit_code == 0
    same_state(load_state("r.safetensors"), pf.refit(expected, [data]).model.state_dict())
    frontier = ("frontier", SMALL, *sources, "--evaluate", "v.npz", "--alphas", "0.5", "--out", "f.csv")
    assert run(*frontier).exit_code == 0
    listed = f"factory: {SMALL}\nmodels:\n  - checkpoint: a.safetensors\n  - checkpoint: b.pt\noutput: r.pt\n"
    Path("r.yaml").write_text(f"{listed}data: d.npz\n")
    assert run("run", "r.yaml").exit_code == 0
    same_state(load_state("r.pt"), expected.model.state_dict())
    fails(run(*fuse, "--out", "f.pt"), "give --input SHAPE, or --data FILE")
    Path("r.yaml").write_text(listed)
    fails(run("run", "r.yaml"), "the key 'input' is missing; give it, or data")
    np.savez("d.npz", x=data.numpy(), y=data.numpy())
    fails(run(*fuse, "--data", "d.npz", "--out", "f.pt"), "or give --input SHAPE for each input")


def test_inputs_by_name(folder: Path) -> None:
    spec = f"{MODULE}:Two"
    models = [build(spec, seed=seed) for seed in (0, 1)]
    for model, name in zip(models, ("x.pt", "y.pt"), strict=True):
        save_state(model, name)
    args = ("fuse", spec, "x.pt", "y.pt", "--input", "y=1,5", "--input", "x=1,4", "--out", "f.pt")
    batch = {"x": torch.randn(6, 4), "y": torch.randn(6, 5), "labels": torch.randint(3, (6,))}
    np.savez("d.npz", **{name: tensor.numpy() for name, tensor in batch.items()})
    result = run(*args, "--data", "d.npz", "--mix", "auto", "--evaluate", "d.npz")
    assert result.exit_code == 0, result.stderr
    inputs = example_inputs(["y=1,5", "x=1,4"], 0)
    expected = pf.fuse(models, inputs, data=[batch], mix="auto", evaluate=[batch])
    same_state(load_state("f.pt"), expected.model.state_dict())
    np.savez("d.npz", x=batch["x"].numpy())
    fails(run(*args, "--data", "d.npz"), "d.npz holds x and lacks y")
    fails(run("trace", spec, "--input", "1,5", "--input", "x=1,4"), "name every input, each once, or none")


def test_example_inputs() -> None:
    x, y, z = example_inputs(["2,3", "4:int64", "1,2:float64"], 7)
    assert (x.shape, x.dtype) == ((2, 3), torch.float32)
    assert (y.shape, y.dtype) == ((4,), torch.int64)
    assert (z.shape, z.dtype) == ((1, 2), torch.float64)
    assert all(
        torch.equal(a, b) for a, b in zip((x, y, z), example_inputs(["2,3", "4:int64", "1,2:float64"], 7), strict=True)
    )
    for bad in ("", "a", "1,,2", "0,3", "-1,3", "1,3:float33", "1,3:nn", "=1", "2=1", "x="):
        with pytest.raises(OptionError, match="--input"):
            example_inputs([bad], 0)


def test_global_random_state_stays(folder: Path) -> None:
    state = torch.random.get_rng_state()
    assert run(*FUSE, "--out", "f.pt").exit_code == 0
    assert torch.equal(torch.random.get_rng_state(), state)


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--alpha", "1.5"), "out of range"),
        (("--alpha", "much"), "'much' is not a number"),
        (("--alpha", "0.1", "--alpha", "0.2"), "2 numbers"),
        (("--alpha", "0=0.1", "--alpha", "0=0.2"), "a number for '0' is given twice"),
        (("--alpha", "*=0.1", "--alpha", "0.2"), "a number for all spaces twice"),
        (("--alpha", "layer9=0.2"), "no elastic space matches 'layer9'"),
        (("--round-to", "none"), "--round-to none: give auto, or a whole number of channels from 1 on"),
        (("--mix", "0.5,0.6"), "sum to one"),
        (("--mix", "1.5"), "share of the first of two models: it must be between 0 and 1"),
        (("--mix", "0.2,0.3,0.5"), "3 shares for 2 models"),
        (("--mix", "a,b"), "'a' is not a number"),
        (("--method", "magic"), "choose one of auto, average"),
        (("--features", "smell"), "features='smell'"),
        (("--align", "x"), "align='x'"),
        (("--norm", "x"), "norm='x'"),
        (("--convention", "x"), "convention='x'"),
        (("--masses", "x"), "masses='x'"),
        (("--masses", "incoming", "--budget", "1.2"), "needs a given alpha"),
        (("--features", "activations"), "needs data"),
        (("--data", "nothing.npy"), "nothing.npy: there is no such file"),
        (("--data", "junk.npy"), "junk.npy is not a .npy file"),
        (("--data", "empty.npy"), "empty.npy holds no samples"),
        (("--data", "wrong.npy"), "of shapes [(5, 7)] does not run"),
        (("--input", "2,6"), "does not run on the example inputs"),
        (("--out", "nowhere/f.pt"), "create it first"),
        (("--out", "f.txt"), "must end in .safetensors"),
        (("--out", "a.safetensors"), "a.safetensors is an input"),
        (("--out", "b.pt"), "b.pt is an input"),
        (("--out", "link.pt"), "link.pt is an input"),
    ],
)
def test_bad_options(folder: Path, options: tuple[str, ...], message: str) -> None:
    np.save("empty.npy", np.zeros((0, 6), np.float32))
    np.save("wrong.npy", np.zeros((5, 7), np.float32))
    Path("junk.npy").write_bytes(b"junk")
    Path("link.pt").symlink_to("b.pt")
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    out = () if "--out" in options else ("--out", "f.safetensors")
    fails(run(*FUSE, *out, *options), message)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_bad_checkpoints(folder: Path) -> None:
    Path("short.safetensors").write_bytes(Path("a.safetensors").read_bytes()[:100])
    Path("short.pt").write_bytes(Path("b.pt").read_bytes()[:500])
    Path("nothing.pt").touch()
    torch.save(nn.Linear(2, 2), "whole.pt")
    save_state(nn.Linear(6, 3), "other.safetensors")
    state = load_state("a.safetensors")
    torch.save({**state, "0.bias": state["0.bias"] / 0}, "nan.pt")
    before = sorted(os.listdir())
    for name, message in {
        "short.safetensors": "truncated",
        "short.pt": "truncated",
        "nothing.pt": "is empty",
        "whole.pt": "is refused",
        "other.safetensors": "does not fit Sequential",
        "missing.pt": "no such file",
        "nan.pt": "0.bias (8,) holds 8 NaN or infinite values",
    }.items():
        result = run("fuse", SMALL, "a.safetensors", name, "--input", "2,6", "--out", "f.safetensors")
        fails(result, message, *([name] if name != "nan.pt" else []))
        assert sorted(os.listdir()) == before
    fails(run("fuse", SMALL, "a.safetensors", "--input", "2,6", "--out", "f.pt"), "two or more models")
    fails(run("fuse", f"{MODULE}:medium", *FUSE[2:], "--out", "f.pt"), "has no 'medium'")
    fails(run("trace", SMALL, "--input", "2,6", "--weights", "other.safetensors"), "it lacks: 0.weight (8, 6)")


def test_failure_while_fusing_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("f.pt").write_bytes(b"old")
    for trouble, code in ((KeyboardInterrupt(), 130), (RuntimeError("strange\nthing"), 1), (pf.FusionError("a\nb"), 1)):

        def fail(*args: object, trouble: BaseException = trouble, **options: object) -> None:
            raise trouble

        monkeypatch.setattr(api, "fuse", fail)
        before = sorted(os.listdir())
        fails(run(*FUSE, "--out", "f.pt"), code=code)
        assert sorted(os.listdir()) == before
        assert Path("f.pt").read_bytes() == b"old"


def test_unexpected_errors_can_be_traced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("strange")

    monkeypatch.setattr(api, "trace", fail)
    fails(run("trace", SMALL, "--input", "2,6"), "unexpected RuntimeError: strange", TRACEBACK)
    monkeypatch.setenv(TRACEBACK, "1")
    assert isinstance(run("trace", SMALL, "--input", "2,6").exception, RuntimeError)


@pytest.mark.parametrize(
    "args",
    [("fuse",), ("fuse", SMALL, "a.pt"), ("trace", SMALL), ("wat",), ("demo", "--seed", "x"), ("demo", "--seed", "-1")],
)
def test_usage_errors(args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert "Usage" in result.stderr


def test_help_and_version() -> None:
    for command in COMMANDS:
        result = run(command, "--help")
        assert result.exit_code == 0
        assert f"partialfusion {command}" in result.stdout.split("Examples")[1]
    assert run("--version").stdout == f"partialfusion {pf.__version__}\n"
    assert set(COMMANDS) <= set(run("--help").stdout.split())


@pytest.mark.parametrize("words", [("list",), ("run", "--quick"), ("report",)])
def test_study_without_its_package(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stripped install has no experiments: one line says how to get them, and the help is there all the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "partialfusion_study", None)
    fails(run("study", *words), "partialfusion_study", 'pip install "partialfusion[study]"')
    assert list(tmp_path.iterdir()) == []
    assert run("study", words[0], "--help").exit_code == 0


def test_only_the_study_command_imports_the_study() -> None:
    package = Path(pf.__file__).parent
    importing = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "partialfusion_study" for name in names):
                importing.add(str(path.relative_to(package)))
    assert importing == {"cli/study.py"}


# In a process of its own


def process(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "from partialfusion.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, cwd=cwd, timeout=120)


def test_process(folder: Path) -> None:
    done = process(*FUSE, "--out", "f.safetensors", "--json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["out"] == "f.safetensors"
    models = [load_model(SMALL, path) for path in ("a.safetensors", "b.pt")]
    same_state(load_state("f.safetensors"), pf.fuse(models, torch.ones(2, 6)).model.state_dict())


def test_process_that_fails(folder: Path) -> None:
    Path("b.pt").write_bytes(Path("b.pt").read_bytes()[:900])
    done = process(*FUSE, "--out", "f.safetensors", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: b.pt is truncated or not a torch file of tensors; save or copy it again\n"
    assert not Path("f.safetensors").exists()


def test_process_that_is_interrupted(folder: Path) -> None:
    """Ctrl-C while a factory takes its time: one line, the code of an interrupt, nothing written."""
    before = sorted(p.name for p in folder.iterdir())
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # jobs in the background do not
    code = f"{listen}; from partialfusion.cli import main; main()"
    args = ("fuse", f"{MODULE}:slow", "a.safetensors", "b.pt", "--input", "2,6", "--out", "f.safetensors")
    command = [sys.executable, "-c", code, *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as running:
        while not (folder / "started").exists() and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, message = running.communicate(timeout=60)
    assert (running.returncode, out, message) == (130, "", "error: interrupted\n")
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == sorted([*before, "started"])
