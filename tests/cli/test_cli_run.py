"""`run`: recipes give what the library gives, and every error in one is reported with its line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from calls import CONV, LARGE, MODULE, SMALL, fails, run, same_state
from typer.testing import Result

import partialfusion as pf
from partialfusion import api
from partialfusion.cli.parse import example_inputs
from partialfusion.io.checkpoints import load_model, load_state, save_state
from partialfusion.io.factories import build

TWO = f"""
factory: {SMALL}
models:
  - checkpoint: a.safetensors
  - checkpoint: b.pt
input: 2,6
output: f.safetensors
"""  # the first key stands in line 2
ONE = f"models: [{{factory: '{SMALL}', checkpoint: b.pt}}]\ninput: 2,6\noutput: s.pt\n"


def recipe(text: str, *options: str) -> Result:
    Path("r.yaml").write_text(text)
    return run("run", "r.yaml", *options)


# Results


def test_equals_the_library_and_the_command(folder: Path) -> None:
    data = torch.randn(40, 6, generator=torch.Generator().manual_seed(3))
    np.save("x.npy", data.numpy())
    result = recipe(
        TWO
        + dedent("""
            method: partial-ot
            alpha: {"2": 1, "*": 0.25}
            round_to: 4
            mix: [0.3, 0.7]
            features: activations
            similarity: auto
            align: greedy
            masses: outgoing
            site: post
            norm: analytic
            convention: mass
            data: x.npy
            batch: 20
            refit: 1e-1   # a number, although YAML reads it as a string
            zeros: kept
            check: no
            allow_shortfall: yes
            seed: 4
            dtype: float16
        """)
    )
    assert result.exit_code == 0, result.stderr
    models = [load_model(SMALL, path, seed=4) for path in ("a.safetensors", "b.pt")]
    expected = pf.fuse(
        models,
        example_inputs(["2,6"], 4),
        alpha={"2": 1.0, "*": 0.25},
        round_to=4,
        mix=[0.3, 0.7],
        features="activations",
        similarity="auto",
        align="greedy",
        masses="outgoing",
        site="post",
        norm="analytic",
        convention="mass",
        data=list(data.split(20)),
        refit=0.1,
        zeros="kept",
        check=False,
        seed=4,
    )
    same_state(load_state("f.safetensors"), {n: t.half() for n, t in expected.model.state_dict().items()})
    assert str(expected.summary()) in result.stdout
    typed = [
        *("fuse", SMALL, "a.safetensors", "b.pt", "--input", "2,6", "--alpha", "2=1", "--alpha", "0.25"),
        *("--round-to", "4", "--mix", "0.3,0.7", "--features", "activations", "--align", "greedy", "--site", "post"),
        *("--masses", "outgoing", "--similarity", "auto"),
        *(
            "--norm",
            "analytic",
            "--convention",
            "mass",
            "--data",
            "x.npy",
            "--batch",
            "20",
            "--refit",
            "--ridge",
            "0.1",
            "--zeros",
            "kept",
        ),
        *("--no-check", "--seed", "4", "--dtype", "float16", "--out", "g.safetensors"),
    ]
    assert run(*typed).exit_code == 0
    assert Path("g.safetensors").read_bytes() == Path("f.safetensors").read_bytes()


def test_defaults_are_the_library_s(folder: Path) -> None:
    document = json.loads(recipe(TWO, "--json").stdout)
    models = [load_model(SMALL, path) for path in ("a.safetensors", "b.pt")]
    expected = pf.fuse(models, example_inputs(["2,6"], 0))
    same_state(load_state("f.safetensors"), expected.model.state_dict())
    assert document["ratio"] == expected.count.ratio


def test_one_model_is_pruned(folder: Path) -> None:
    text = f"""
        models: [{{factory: "{SMALL}", checkpoint: a.safetensors}}]
        input: [2, 6]
        keep: {{"0": 0.5}}
        method: {{name: cluster, solver: lloyd, restarts: 3}}
        output: s.pt
    """
    assert recipe(dedent(text)).exit_code == 0
    method = pf.Cluster(solver="lloyd", restarts=3)
    model = load_model(SMALL, "a.safetensors")
    expected = pf.prune(model, example_inputs(["2,6"], 0), keep={"0": 0.5}, method=method)
    same_state(load_state("s.pt"), expected.model.state_dict())


def test_factories_inputs_and_anchors(folder: Path) -> None:
    two = f"{MODULE}:Two"
    for seed, name in enumerate("xy"):
        save_state(build(two, seed=seed), f"{name}.pt")
    text = f"""
        models:
          - &first {{factory: "{two}", checkpoint: x.pt}}
          - {{<<: *first, checkpoint: y.pt}}
        input: ["1,4", [1, 5]]
        output: f.safetensors
    """
    assert recipe(dedent(text)).exit_code == 0
    models = [load_model(two, path) for path in ("x.pt", "y.pt")]
    same_state(load_state("f.safetensors"), pf.fuse(models, example_inputs(["1,4", "1,5"], 0)).model.state_dict())


def test_the_result_is_named(folder: Path) -> None:
    tags = f"{MODULE}:Tags"
    save_state(build(tags, seed=0), "x.safetensors")
    text = f"""
        factory: {tags}
        models: [{{checkpoint: x.safetensors}}]
        input: 2,6
        result: RESULT
        keep: 0.5
        output: small.safetensors
        """
    for name in ("tags", "0"):
        done = recipe(text.replace("RESULT", name))
        assert done.exit_code == 0, done.stderr
        assert load_state("small.safetensors")["hidden.weight"].shape == (4, 6)
    assert "nothing can be pruned" in recipe(text.replace("RESULT", "states")).stderr  # all of its layers are outputs
    assert "r.yaml:5: output='logits'" in recipe(text.replace("RESULT", "logits")).stderr


def test_unequal_widths(folder: Path) -> None:
    text = TWO.replace("- checkpoint: b.pt", f"- checkpoint: large.safetensors\n    factory: {LARGE}")
    assert recipe(text + "alpha: 0\n").exit_code == 0
    assert load_state("f.safetensors")["0.weight"].shape == (12, 6)


def test_dry_run_does_nothing(folder: Path) -> None:
    result = recipe(TWO, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "r.yaml is valid: 2 model(s) into f.safetensors\n")
    assert not Path("f.safetensors").exists()


# Errors


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (TWO + "metod: ot\n", 8, "unknown key 'metod' in the recipe; did you mean method?"),
        (TWO + "method: partial_ot\n", 8, "method: 'partial_ot' is not known; did you mean partial-ot?"),
        (TWO + "alpha: 1.5\n", 8, "alpha: 1.5 is out of range"),
        (TWO + "alpha: much\n", 8, "alpha: expected a number, got 'much'"),
        (TWO + "alpha: .nan\n", 8, "expected a number"),
        (TWO + "alpha:\n  '0': 0.5\n  '2': -1\n", 10, "alpha: -1 is out of range"),
        (TWO + "mix: [0.5, 0.6]\n", 8, "mix=[0.5, 0.6] must be non-negative and sum to one, its sum is 1.1"),
        (TWO + "mix: [1]\n", 8, "mix=[1.0] has 1 shares for 2 models"),
        (TWO + "mix: 1.5\n", 8, "mix=1.5 is the share of the first of two models: it must be between 0 and 1"),
        (TWO + "mix: half\n", 8, "mix: expected a number, got 'half'"),
        (TWO + "mix: auto\n", 8, "mix: auto needs data or a function to choose by; give evaluate"),
        (TWO + "evaluate: a.safetensors\n", 8, "evaluate: it is only used by mix: auto"),
        (TWO + "mix: auto\nevaluate: none.npz\n", 9, "evaluate: none.npz: there is no such file"),
        (TWO + "mix: auto\nevaluate: nets_nowhere:f\n", 9, "evaluate 'nets_nowhere:f': there is no module"),
        (TWO + "budget: much\n", 8, "budget: expected a number, got 'much'"),
        (TWO + "budget: 0\n", 8, "budget: '0' must be a number above 0"),
        (TWO + "budget:\n  params: 1.3\n  size: 2\n", 10, "budget: 'size' cannot be bounded"),
        (TWO + "alpha: 0.5\nbudget: 1.3\n", 9, "budget: alpha and budget exclude each other"),
        (TWO + "budget: 0.1\n", 8, "the budget of"),
        (TWO + "keep: 0.5\n", 8, "keep: several models are fused: give alpha instead"),
        (TWO + "batch: 3\n", 8, "batch: there is no data"),
        (TWO + "seed: -1\n", 8, "seed: expected a whole number of at least 0"),
        (TWO + "seed: 1.5\n", 8, "seed: expected a whole number"),
        (TWO + "check: maybe\n", 8, "check: expected true or false, got 'maybe'"),
        (TWO + "refit: 0\n", 8, "refit: expected true, false, auto, or the strength"),
        (TWO + "zeros: some\n", 8, "zeros: 'some' is not known"),
        (TWO + "masses: heavy\n", 8, "masses: 'heavy' is not known"),
        (TWO + "refit: [1]\n", 8, "refit: expected a number, got a list"),
        (TWO + "data: none.npy\n", 8, "data: none.npy: there is no such file"),
        (TWO + "dtype: float8\n", 8, "dtype: 'float8' is not known; did you mean"),
        (TWO + "seed: 1\nseed: 2\n", 9, "seed is given twice"),
        (TWO + "alpha:\n  '0': 0.5\n  '0': 0.1\n", 10, "alpha: 0 is given twice"),
        (TWO + "budget:\n  params: 1.3\n  params: 2\n", 10, "budget: params is given twice"),
        (TWO + "method: {name: cluster, solver: ward, solver: lloyd}\n", 8, "method: solver is given twice"),
        (TWO.replace("f.safetensors", "7"), 7, "output: expected a string, got '7'"),
        (TWO + "method: {name: cluster, speed: 3}\n", 8, "cluster has no setting 'speed'; it has solver"),
        (TWO + "method: {name: cluster, solver: quick}\n", 8, "solver"),
        (TWO + "method: {solver: ward}\n", 8, "needs a name"),
        (TWO + "alpha: {0: 0.1\n", 9, "invalid YAML"),
        (TWO + "alpha: *nothing\n", 8, "invalid YAML: found undefined alias"),
        (TWO + "--- \n{}\n", 8, "invalid YAML"),
        (TWO.replace("a.safetensors", "none.pt"), 4, "checkpoint: none.pt: there is no such file"),
        (TWO.replace("checkpoint: a", "chekpoint: a"), 4, "unknown key 'chekpoint' in a model; did you mean check"),
        (TWO.replace("- checkpoint: a.safetensors", "- a.safetensors"), 4, "a model must be a mapping"),
        (TWO.replace(f"factory: {SMALL}", "").replace("b.pt", f"b.pt\n    factory: {SMALL}"), 4, "needs a factory"),
        (TWO.replace("input: 2,6", "input: 2,x"), 6, "input: shape 2,x: a shape is whole numbers"),
        (TWO.replace("input: 2,6", "input: 2,6:float33"), 6, "'float33' is not a type of inputs"),
        (TWO.replace("input: 2,6", "input: [2, 0]"), 6, "input: expected a whole number of at least 1"),
        (TWO.replace("output:", "outputs:"), 7, "unknown key 'outputs' in the recipe; did you mean output?"),
        (TWO.replace("output: f.safetensors", ""), 2, "the key 'output' is missing"),
        ("- 1\n", 1, "the recipe must be a mapping"),
        ("", 1, "the recipe must be a mapping"),
        ("\x00", 1, "invalid YAML"),
        (ONE + "alpha: 1\n", 4, "alpha: one model is pruned: give keep instead"),
        (ONE + "method: ot\n", 4, "method: one model is pruned: choose from auto, cluster"),
        # what only the library can find
        (TWO + "alpha: {layer9: 0.2}\n", 8, "alpha: no elastic space matches 'layer9'"),
        (TWO + "refit: true\n", 8, "refit needs data"),
        (TWO + "features: both\n", 8, "features='both' needs data"),
        (TWO.replace("f.safetensors", "nowhere/f.pt"), 7, "nowhere/f.pt cannot be written"),
        (TWO.replace("f.safetensors", "f.txt"), 7, "f.txt cannot be written: its name must end in"),
        (TWO.replace("output: f.safe", "output: a.safe"), 7, "a.safetensors is an input"),
        (TWO.replace("b.pt", "large.safetensors"), 5, "large.safetensors does not fit"),
        (TWO.replace(SMALL, f"{MODULE}:medium"), 2, f"factory '{MODULE}:medium': {MODULE} has no 'medium'"),
        (TWO.replace(SMALL, "nets_nowhere:net"), 2, "there is no module 'nets_nowhere'"),
    ],
)  # fmt: skip
def test_errors_are_reported_with_their_line(folder: Path, text: str, line: int, message: str) -> None:
    Path("r.yaml").write_text(text)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    fails(run("run", "r.yaml"), f"error: r.yaml:{line}: ", message)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_all_errors_are_reported_at_once(folder: Path) -> None:
    result = recipe(TWO.replace("b.pt", "none.pt") + "alpha: 2\nmetod: ot\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == ["r.yaml:5", "r.yaml:8", "r.yaml:9"]


def test_mismatched_models(folder: Path) -> None:
    save_state(build(CONV), "conv.pt")
    text = TWO.replace("- checkpoint: a.safetensors", f"- checkpoint: conv.pt\n    factory: {CONV}")
    fails(recipe(text), "error: r.yaml:4: models[0] has a different architecture")


def test_no_recipe(folder: Path) -> None:
    fails(run("run", "none.yaml"), "none.yaml cannot be read: No such file")
    fails(run("run", "."), "cannot be read")


def test_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "fuse", stop)
    Path("r.yaml").write_text(TWO)
    before = sorted(os.listdir())
    fails(run("run", "r.yaml"), "interrupted", code=130)
    assert sorted(os.listdir()) == before
