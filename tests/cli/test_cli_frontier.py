"""`frontier`: the same networks and scores as the library's, in the files asked for."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calls import LARGE, MODULE, SMALL, fails, run, same_state

import partialfusion as pf
from partialfusion.cli.parse import example_inputs
from partialfusion.core import progress
from partialfusion.fusing.pipeline import Pipeline, Reduced
from partialfusion.io.checkpoints import load_model, load_state

FRONTIER = ("frontier", SMALL, "a.safetensors", "b.pt", "--input", "2,6")
SCORED = (*FRONTIER, "--evaluate", f"{MODULE}:score")
FUSE = ("fuse", SMALL, "a.safetensors", "b.pt", "--input", "2,6", "--out", "f.safetensors")
Labelled = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def labelled(folder: Path) -> Labelled:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(40, 6, generator=generator), torch.randint(3, (40,), generator=generator)
    np.savez("v.npz", x=x.numpy(), labels=y.numpy())
    np.save("x.npy", x.numpy())
    return x, y


def models() -> list[torch.nn.Module]:
    return [load_model(SMALL, path) for path in ("a.safetensors", "b.pt")]


def score(model: torch.nn.Module, scale: float = 1.0) -> float:
    """As in the module of the tests."""
    return -scale * float(sum(p.detach().abs().mean() for p in model.parameters()))


def without_seconds(document: dict[str, Any]) -> dict[str, Any]:
    for point in document["points"]:
        del point["seconds"]
    return document


def plain(found: pf.Frontier) -> dict[str, Any]:
    return without_seconds(json.loads(json.dumps(found.to_dict())))


def test_equals_the_library(labelled: Labelled) -> None:
    x, y = labelled
    options = ("--alphas", "0,0.5", "--methods", "average,partial-ot", "--mixes", "0.25", "--mixes", "0.5,0.5")
    more = (
        "--data",
        "x.npy",
        "--batch",
        "20",
        "--refit",
        "--ridge",
        "0.1",
        "--names",
        "left,right",
        "--align",
        "greedy",
    )
    files = ("--out", "p.html", "--out", "t.csv", "--out", "t.json")
    result = run(*FRONTIER, "--evaluate", "v.npz", *options, *more, *files, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    expected = pf.frontier(
        models(),
        example_inputs(["2,6"], 0),
        evaluate=[(x[:20], y[:20]), (x[20:], y[20:])],
        alphas=[0, 0.5],
        methods=("average", "partial-ot"),
        mixes=[0.25, (0.5, 0.5)],
        data=[x[:20], x[20:]],
        refit=0.1,
        names=("left", "right"),
        align="greedy",
    )
    document = json.loads(result.stdout)
    assert document.pop("out") == ["p.html", "t.csv", "t.json"]
    assert without_seconds(document) == plain(expected)
    assert document["metric"] == "accuracy"
    assert without_seconds(json.loads(Path("t.json").read_text())) == plain(expected)
    rows = list(csv.DictReader(Path("t.csv").read_text().splitlines()))
    assert [float(r["score"]) for r in rows] == [p.score for p in expected.points]
    assert Path("p.html").read_text().count("data-point=") == len(expected.points)


def test_masses(folder: Path) -> None:
    result = run(*SCORED, "--alphas", "0.5", "--masses", "incoming", "--out", "t.json", "--json")
    assert result.exit_code == 0, result.stderr
    own = pf.fuse(models(), example_inputs(["2,6"], 0), alpha=0.5, masses="incoming")
    assert json.loads(result.stdout)["points"][-1]["score"] == score(own.model)
    fails(run(*SCORED, "--methods", "cluster", "--masses", "incoming", "--out", "t.json"), "ot and partial-ot")
    fails(run(*SCORED, "--budget", "1.2", "--masses", "incoming", "--out", "t.json"), "needs a given alpha")


def test_budgets_and_latency(folder: Path) -> None:
    options = ("--budget", "1.2", "--budget", "params=1.4,flops=1.9", "--latency", "--out", "t.json")
    result = run(*SCORED, *options, "--json")
    assert result.exit_code == 0, result.stderr
    expected = pf.frontier(
        models(), example_inputs(["2,6"], 0), evaluate=score, budgets=[1.2, pf.Budget(params=1.4, flops=1.9)]
    )
    points = json.loads(result.stdout)["points"]
    assert [p["budget"] for p in points[3:]] == ["1.2", "params 1.4, flops 1.9"]
    assert [(p["dense"], p["score"]) for p in points] == [(p.dense, p.score) for p in expected.points]
    assert all(p["latency_dense"] > 0 for p in points)
    fails(run(*SCORED, "--budget", "size=2", "--out", "t.json"), "'size' cannot be bounded")


def test_table_title_and_function(folder: Path) -> None:
    result = run(*SCORED, "--alphas", "0,1", "--metric", "flatness", "--title", "Mine & yours", "--out", "p.html")
    assert result.exit_code == 0, result.stderr
    expected = pf.frontier(models(), example_inputs(["2,6"], 0), evaluate=score, alphas=(0, 1), metric="flatness")
    text, message = result.stdout.rsplit("\n\n", 1)
    assert message == "wrote p.html\n"
    found = [line.split("  ")[0] for line in text.splitlines()[2:]]
    assert found[: len(expected.points)] == [p.method for p in expected.points]
    assert all(f"{p.score:.4f}" in text for p in expected.points)
    assert "flatness" in text
    assert re.search(r"<title>Mine &amp; yours</title>", Path("p.html").read_text())
    quiet = run(*SCORED, "--alphas", "0", "--out", "q.json", "--quiet")
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    assert json.loads(Path("q.json").read_text())["complete"]


def test_unequal_widths(folder: Path) -> None:
    args = ("frontier", SMALL, "a.safetensors", "large.safetensors", "--factory", LARGE, "--input", "2,6")
    result = run(*args, "--evaluate", f"{MODULE}:score,scale=2", "--alphas", "0", "--out", "p.csv", "--json")
    scores = {p["method"]: p["score"] for p in json.loads(result.stdout)["points"]}
    assert scores["model B"] == score(load_model(LARGE, "large.safetensors"), 2)


def test_interrupted_in_between(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is written, and the code is that of an interrupt."""
    reduce, calls = Pipeline.reduce, []

    def stopping(*args: Any, **options: Any) -> Reduced:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return reduce(*args, **options)

    monkeypatch.setattr(Pipeline, "reduce", stopping)
    result = run(*SCORED, "--out", "p.html", "--out", "t.json")
    assert result.exit_code == 130
    assert result.stderr == ("error: interrupted; the 5 networks measured so far are in p.html, t.json\n")
    assert "interrupted: not every network was measured" in result.stdout
    document = json.loads(Path("t.json").read_text())
    assert not document["complete"]
    assert len(document["points"]) == 5
    assert "Measuring was interrupted" in Path("p.html").read_text()


def test_nothing_that_could_be_fused_is_a_failure(labelled: Labelled) -> None:
    wide = ("frontier", SMALL, "a.safetensors", "large.safetensors", "--factory", LARGE, "--input", "2,6")
    args = (*wide, "--evaluate", "v.npz", "--alphas", "0.5", "--out", "p.html")
    fails(run(*args, "--methods", "permutation,average", "--quiet"), "none of the 2 fusions", "needs equal widths")
    assert not Path("p.html").exists()
    assert run(*args, "--methods", "permutation,partial-ot").exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--alphas", "0,2"), "alphas: 2.0 is not a number from 0 to 1"),
        (("--alphas", "0,x"), "--alphas 0,x: 'x' is not a number"),
        (("--alphas", ""), "--alphas : "),
        (("--alphas", "nan"), "not a number"),
        (("--alphas", "1e400"), "not a number"),
        (("--alphas", "-1"), "not a number from 0 to 1"),
        (("--budget", "0"), "0"),
        (("--budget", "nan"), "nan"),
        (("--budget", "speed=1"), "speed"),
        (("--size", "huge"), "size='huge' is not known"),
        (("--mixes", "nan,nan"), "nan"),
        (("--out", "/dev/full"), "/dev/full cannot be written"),
        (("--out", "nowhere/p.html"), "there is no folder"),
        (("--out", f"{'x' * 5000}.html"), "cannot be written"),
        (("--methods", "magic"), "method='magic' is not known"),
        (("--methods", "ot,"), "--methods ot,: give names separated by commas"),
        (("--mixes", "0.5,0.6"), "sum to one"),
        (("--mixes", "0.2,0.2,0.6"), "3 shares for 2 models"),
        (("--names", "a"), "must be 2 different names"),
        (("--refit",), "refit needs data"),
        (("--ridge", "1"), "add --refit"),
        (("--out", "p.txt"), "p.txt cannot be written: its name must end in .html"),
        (("--out", "p.html", "--out", "p.html"), "given twice"),
        (("--out", "link.json"), "is an input"),
        (("--evaluate", "none.npz"), "none.npz: there is no such file"),
        (("--evaluate", "x.npy"), "x.npy holds 1 tensor(s) (array) where 1 input(s) and labels are expected"),
        (("--evaluate", "soft.npz"), "holds labels of type torch.float32 and shape (40, 3)"),
        (("--evaluate", "short.npz"), "tensors of [39, 40] samples"),
        (("--evaluate", "three.npz"), "holds 3 tensor(s) (a, b, labels)"),
        (("--evaluate", f"{MODULE}:none"), f"evaluate '{MODULE}:none': {MODULE} has no 'none'"),
        (("--evaluate", f"{MODULE}:number"), "is of type int: name a function that takes a model and returns a number"),
        (("--evaluate", "nets_nowhere:f"), "there is no module 'nets_nowhere'"),
        (("--evaluate", f"{MODULE}:"), "name a function that takes a model"),
        (("--evaluate", f"{MODULE}:broken"), "failed on a Sequential: RuntimeError: no luck"),
        (("--evaluate", f"{MODULE}:leaves"), "failed on a Sequential: SystemExit"),
        (("--evaluate", f"{MODULE}:words"), "evaluate returned a str, neither a number"),
    ],
)  # fmt: skip
def test_bad_options(labelled: Labelled, options: tuple[str, ...], message: str) -> None:
    x, y = (t.numpy() for t in labelled)
    np.savez("soft.npz", x=x, labels=np.eye(3, dtype=np.float32)[y])
    np.savez("short.npz", x=x, labels=y[1:])
    np.savez("three.npz", a=x, b=x, labels=y)
    Path("in.json").write_text("{}")
    Path("link.json").symlink_to("v.npz")
    before = {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()}
    evaluate = () if "--evaluate" in options else ("--evaluate", "v.npz")
    out = () if "--out" in options else ("--out", "p.html")
    fails(run(*FRONTIER, *evaluate, *out, *options), message)
    assert {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()} == before


@pytest.mark.parametrize("form", ["npz", "pt", "safetensors"])
def test_labels_are_found_by_name_or_come_last(labelled: Labelled, form: str) -> None:
    import safetensors.torch

    from partialfusion.io.datafiles import load_labelled

    x, y = labelled
    named, unnamed = {"labels": y.to(torch.uint8), "x": x.double()}, {"images": x, "targets": y}
    for content in (named, unnamed):
        if form == "npz":
            np.savez("l.npz", **{name: t.numpy() for name, t in content.items()})
        elif form == "pt":
            torch.save(content, "l.pt")
        else:
            safetensors.torch.save_file(content, "l.safetensors")
        batches = load_labelled(f"l.{form}", 16, like=x)
        assert [len(labels) for _, labels in batches] == [16, 16, 8]
        assert torch.equal(torch.cat([a for a, _ in batches]), x)
        assert torch.equal(torch.cat([b for _, b in batches]), y)
        assert batches[0][0].dtype == torch.float32


# Budgets


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("1.3", pf.Budget(dense=1.3)),
        ("params=1.5,flops=1.4", pf.Budget(params=1.5, flops=1.4)),
        ("channels=20", pf.Budget(channels=20)),
        ("250", pf.Budget(dense=250)),
    ],
)
def test_a_budget_equals_the_library_s(folder: Path, text: str, budget: pf.Budget) -> None:
    result = run(*FUSE, "--budget", text, "--json")
    assert result.exit_code == 0, result.stderr
    expected = pf.fuse(models(), example_inputs(["2,6"], 0), budget=budget)
    same_state(load_state("f.safetensors"), expected.model.state_dict())
    document = json.loads(result.stdout)
    assert document["budget"] == {
        n: b for n in ("dense", "params", "flops", "channels") if (b := getattr(budget, n)) is not None
    }
    assert document["recipe"]["alpha"] == expected.recipe.alpha
    Path("r.yaml").write_text(
        f"factory: {SMALL}\nmodels: [{{checkpoint: a.safetensors}}, {{checkpoint: b.pt}}]\ninput: 2,6\n"
        f"budget: {'{' + text.replace('=', ': ') + '}' if '=' in text else text}\noutput: g.safetensors\n"
    )
    assert run("run", "r.yaml").exit_code == 0
    assert Path("g.safetensors").read_bytes() == Path("f.safetensors").read_bytes()


def test_a_budget_for_pruning(folder: Path) -> None:
    result = run("prune", SMALL, "a.safetensors", "--input", "2,6", "--budget", "0.5", "--out", "s.pt")
    assert result.exit_code == 0, result.stderr
    expected = pf.prune(load_model(SMALL, "a.safetensors"), example_inputs(["2,6"], 0), budget=0.5)
    same_state(load_state("s.pt"), expected.model.state_dict())
    assert "budget: dense 0.5\n" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--budget", "1.3", "--alpha", "0.5"), "alpha and budget exclude each other"),
        (("--budget", "much"), "--budget much: 'much' is not a number"),
        (("--budget", "0"), "--budget 0: '0' must be a number above 0"),
        (("--budget", "inf"), "must be a number above 0"),
        (("--budget", "size=2"), "'size' cannot be bounded, only dense, params, flops, latency, channels can"),
        (("--budget", "1.2,dense=1.3"), "dense is given twice"),
        (("--budget", "0.1"), "the budget of"),
        (("--budget", "1.3", "--method", "ot"), "a budget is for methods that can leave some apart"),
        (("--mix", "auto"), "--mix auto needs labelled data"),
        (("--evaluate", "v.npz"), "is only used by --mix auto"),
    ],
)
def test_bad_budgets_and_mixes(folder: Path, options: tuple[str, ...], message: str) -> None:
    before = sorted(os.listdir())
    fails(run(*FUSE, *options), message)
    assert sorted(os.listdir()) == before


def test_keep_and_budget(folder: Path) -> None:
    args = ("prune", SMALL, "a.safetensors", "--input", "2,6", "--out", "s.pt")
    fails(run(*args, "--budget", "0.5", "--keep", "0.5"), "keep and budget exclude each other")


# Mixes


def test_an_automatic_mix_equals_the_library_s(labelled: Labelled) -> None:
    x, y = labelled
    expected = pf.fuse(
        models(), example_inputs(["2,6"], 0), mix="auto", evaluate=list(zip(x.split(20), y.split(20), strict=True))
    )
    assert expected.mixing is not None
    auto = ("--mix", "auto", "--evaluate", "v.npz", "--batch", "20")
    document = json.loads(run(*FUSE, *auto, "--json").stdout)
    same_state(load_state("f.safetensors"), expected.model.state_dict())
    assert document["mixing"]["mix"] == document["recipe"]["mix"] == list(expected.mixing.mix)
    assert [p["score"] for p in document["mixing"]["points"]] == [p.score for p in expected.mixing.points]
    assert str(expected.mixing) in run(*FUSE, *auto).stdout
    text = f"factory: {SMALL}\nmodels: [{{checkpoint: a.safetensors}}, {{checkpoint: b.pt}}]\ninput: 2,6\n"
    Path("r.yaml").write_text(f"{text}mix: auto\nevaluate: v.npz\nbatch: 20\noutput: g.safetensors\n")
    result = run("run", "r.yaml")
    assert result.exit_code == 0, result.stderr
    assert Path("g.safetensors").read_bytes() == Path("f.safetensors").read_bytes()


def test_progress_is_told_where_there_is_no_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    auto = ("--mix", "auto", "--evaluate", f"{MODULE}:score")
    result = run(*FUSE, *auto, "--json")
    assert re.search(r"^mix 0.3 : 0.7 \(\d+ % done\)$", result.stderr, re.MULTILINE)
    assert json.loads(result.stdout)["mixing"]
    assert run(*FUSE, *auto, "--quiet").stderr == ""


def test_an_automatic_mix_by_a_function(folder: Path) -> None:
    result = run(*FUSE, "--mix", "auto", "--evaluate", f"{MODULE}:score", "--json")
    assert result.exit_code == 0, result.stderr
    expected = pf.fuse(models(), example_inputs(["2,6"], 0), mix="auto", evaluate=score)
    assert json.loads(result.stdout)["recipe"]["mix"] == list(expected.recipe.mix)
    fails(run(*FUSE, "--mix", "auto", "--evaluate", f"{MODULE}:broken"), "no luck")
