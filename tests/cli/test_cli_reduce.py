"""`prune` and `refit`: the same results as the library, from files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from calls import LARGE, SMALL, fails, run, same_state
from torch import Tensor

import partialfusion as pf
from partialfusion import api
from partialfusion.cli.parse import example_inputs
from partialfusion.io.checkpoints import load_model, load_state

PRUNE = ("prune", SMALL, "a.safetensors", "--input", "2,6")
REFIT = ("refit", SMALL, "f.safetensors", "a.safetensors", "b.pt", "--input", "2,6", "--data", "x.npy")


@pytest.fixture
def data(folder: Path) -> Tensor:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(3))
    np.save("x.npy", x.numpy())
    return x


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ((), {}),
        (("--keep", "0.25", "--method", "magnitude", "--seed", "2"), {"keep": 0.25, "method": "magnitude", "seed": 2}),
        (("--keep", "2=0.5", "--no-check"), {"keep": {"2": 0.5}, "check": False}),
        (("--keep", "0.5", "--allow-shortfall"), {"keep": 0.5, "allow_shortfall": True}),
        (("--data", "x.npy", "--batch", "20", "--refit", "--ridge", "0.1"), {"refit": 0.1}),
    ],
)
def test_prune_equals_the_library(data: Tensor, options: tuple[str, ...], keywords: dict[str, object]) -> None:
    result = run(*PRUNE, "--out", "small.safetensors", *options)
    assert result.exit_code == 0, result.stderr
    if "--data" in options:
        keywords = {**keywords, "data": list(data.split(20))}
    seed = int(keywords.get("seed", 0))  # type: ignore[call-overload]
    expected = pf.prune(load_model(SMALL, "a.safetensors"), example_inputs(["2,6"], seed), **keywords)  # type: ignore[arg-type]
    same_state(load_state("small.safetensors"), expected.model.state_dict())
    assert str(expected.summary()) in result.stdout
    assert result.stderr == ""


def test_prune_json_and_half_precision(folder: Path) -> None:
    document = json.loads(run(*PRUNE, "--out", "s.safetensors", "--dtype", "float16", "--json").stdout)
    assert [s["after"] for s in document["spaces"]] == [4, 4, 3]
    assert document["recipe"]["keep"] == 0.5
    assert pf.inspect("s.safetensors").dtype == "float16"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--keep", "0"), "out of range"),
        (("--keep", "half"), "--keep half: 'half' is not a number"),
        (("--keep", "nothing=0.5"), "no elastic space matches 'nothing'"),
        (("--method", "ot"), "choose one of auto, cluster"),
        (("--refit",), "refit needs data"),
        (("--ridge", "0.1"), "add --refit"),
        (("--dtype", "int8"), "dtype='int8' is not known"),
        (("--out", "nowhere/s.safetensors"), "create it first"),
        (("--out", "a.safetensors"), "is an input"),
    ],
)
def test_bad_prunings(folder: Path, options: tuple[str, ...], message: str) -> None:
    before = sorted(os.listdir())
    fails(run(*PRUNE, *(() if "--out" in options else ("--out", "s.safetensors")), *options), message)
    fails(run("prune", SMALL, "large.safetensors", "--input", "2,6", "--out", "s.pt"), "does not fit")
    assert sorted(os.listdir()) == before


def test_refit_equals_the_library(data: Tensor) -> None:
    assert run("fuse", *REFIT[1:2], *REFIT[3:7], "--alpha", "0.5", "--out", "f.safetensors").exit_code == 0
    models = [load_model(SMALL, path) for path in ("a.safetensors", "b.pt")]
    fused = pf.fuse(models, example_inputs(["2,6"], 0), alpha=0.5)
    for options, given in (((), {}), (("--zeros", "kept"), {"zeros": "kept"}), (("--ridge", "0.5"), {"ridge": 0.5})):
        result = run(*REFIT, "--batch", "10", "--out", "r.safetensors", *options)
        assert result.exit_code == 0, result.stderr
        expected = pf.refit(fused, list(data.split(10)), **given)
        same_state(load_state("r.safetensors"), expected.model.state_dict())
        assert str(expected.summary()) in result.stdout
    assert pf.inspect("r.safetensors").recipe["refit"] == 0.5


def test_bad_refits(data: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    run("fuse", *REFIT[1:2], *REFIT[3:7], "--alpha", "0.5", "--out", "f.safetensors")
    run("fuse", *REFIT[1:2], *REFIT[3:7], "--alpha", "0.5", "--out", "f.pt")
    before = sorted(os.listdir())
    head, tail = REFIT[:2], (*REFIT[5:], "--out", "r.safetensors")
    fails(run(*head, "f.safetensors", "a.safetensors", *tail), "made of 2 model(s) and 1 are given")
    fails(run(*head, "f.safetensors", "b.pt", "a.safetensors", *tail), "it is number 1")
    fails(run(*head, "f.safetensors", "a.safetensors", "c.safetensors", *tail), "its weights differ")
    fails(run(*head, "none.safetensors", "a.safetensors", "b.pt", *tail), "no such file")
    fails(run(*head, "a.safetensors", "a.safetensors", "b.pt", *tail), "not of a saved fusion")
    fails(run(*head, "f.pt", "a.safetensors", "b.pt", *tail), "f.pt")
    fails(run("refit", LARGE, *REFIT[2:], "--out", "r.safetensors"), "does not fit")
    fails(run(*REFIT, "--out", "f.safetensors"), "is an input")
    fails(run(*REFIT, "--ridge", "0", "--out", "r.safetensors"), "ridge")
    fails(run(*REFIT[:-1], "none.npy", "--out", "r.safetensors"), "none.npy: there is no such file")
    assert run(*REFIT[:-2], "--out", "r.safetensors").exit_code == 2

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "refit", stop)
    fails(run(*REFIT, "--out", "r.safetensors"), "interrupted", code=130)
    assert sorted(os.listdir()) == before
