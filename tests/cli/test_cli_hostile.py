"""The command line in hostile surroundings: one line and a code, whatever happens; never a traceback."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from calls import SMALL, fails, run

from study.small_data import write_small_data

FUSE = ("fuse", SMALL, "a.safetensors", "b.pt", "--input", "1,6", "--out")
STUDY = ("study", "run", "params_p", "--quick", "--workers", "0", "--results", "results")
LONG = "x" * 5000
RECIPE = """\
models:
  - {{factory: {small}, checkpoint: a.safetensors}}
  - {{factory: {small}, checkpoint: b.pt}}
input: 1,6
output: {out}
"""


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """The system lets no file grow beyond a size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def process(*words: str | bytes, **options: object) -> tuple[int, str]:
    """The exit code and stderr of the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "from partialfusion.cli import main; main()", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        **options,  # type: ignore[call-overload]
    )
    return done.returncode, done.stderr


# Outputs


def test_outputs_that_are_inputs(folder: Path) -> None:
    Path("soft.safetensors").symlink_to("a.safetensors")
    Path("hard.pt").hardlink_to("b.pt")
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    for out in ("a.safetensors", "soft.safetensors", "hard.pt"):
        fails(run(*FUSE, out), f"{out} is an input and would be overwritten")
    Path("r.safetensors").write_text(RECIPE.format(small=SMALL, out="link.safetensors"))
    Path("link.safetensors").symlink_to("r.safetensors")
    fails(run("run", "r.safetensors"), "r.safetensors:5: link.safetensors is an input and would be overwritten")
    Path("r.yaml").write_text(RECIPE.format(small=SMALL, out="to_recipe.safetensors"))
    Path("to_recipe.safetensors").symlink_to("r.yaml")
    fails(run("run", "r.yaml"), "to_recipe.safetensors is an input and would be overwritten")
    assert before == {name: Path(name).read_bytes() for name in before}


def test_an_output_that_leads_to_a_device(folder: Path) -> None:
    for name in ("out.safetensors", "out.pt"):
        Path(name).symlink_to("/dev/full")
        fails(run(*FUSE, name), f"{name} cannot be written: it is a device")
    Path("frontier.html").symlink_to("/dev/full")
    words = ("frontier", SMALL, "a.safetensors", "b.pt", "--input", "1,6", "--evaluate", "x:y", "--out")
    fails(run(*words, "frontier.html"), "frontier.html cannot be written: it is a device")
    fails(run("demo", "--page", "frontier.html"), "it is a device")


def test_one_output_by_two_names(folder: Path) -> None:
    Path("a.html").symlink_to("b.html")
    words = ("frontier", SMALL, "a.safetensors", "b.pt", "--input", "1,6", "--evaluate", "x:y")
    fails(run(*words, "--out", "b.html", "--out", "a.html"), "--out a.html is given twice")


@pytest.mark.parametrize("out", ["out.pt", "out.safetensors"])
def test_a_disk_that_is_full(folder: Path, out: str) -> None:
    names = sorted(os.listdir())
    with small_files(800):
        fails(run(*FUSE, out), f"{out} cannot be written: File too large; free some space")
    assert sorted(os.listdir()) == names


def test_a_study_on_a_disk_that_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from partialfusion_study.cell import Record
    from partialfusion_study.store import Store, StudyError

    store = Store(folder / "cells")
    records = [Record("Kind", str(k), {}, {"x": "y" * 400}, 0.0, {}, "") for k in range(3)]
    store.put(records[0])
    with small_files(700), pytest.raises(StudyError, match="cannot be written: .*; free some space") as caught:
        store.put(records[1])
    assert "\n" not in str(caught.value)
    store.put(records[2])
    assert len(Path("cells/Kind.jsonl").read_text().splitlines()) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [("--version",), ("--help",)])
def test_printing_to_a_full_disk(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        assert process(*words, stdout=full) == (1, "error: standard output: No space left on device\n")


# Names and folders


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def leave() -> None:
        os.chdir(gone)
        os.rmdir(gone)

    code, message = process("trace", "partialfusion.demo:DigitsNet", "--input", "1,64", preexec_fn=leave)
    assert (code, message) == (1, "error: the current folder does not exist any more: change to another one\n")


def test_names_that_are_not_text(folder: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe")
    for name in ("a.safetensors", "b.pt"):
        Path(odd + name).write_bytes(Path(name).read_bytes())
    words = ("fuse", SMALL, "a.safetensors", f"{odd}b.pt", "--input", "1,6", "--out", f"{odd}.pt")
    result = run(*words, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert Path(f"{odd}.pt").exists()
    words = ("fuse", SMALL, f"{odd}a.safetensors", "b.pt", "--input", "1,6", "--out", "out.pt")
    fails(run(*words), "a.safetensors cannot be read: its name is not UTF-8; rename it")


@pytest.mark.parametrize(
    "words",
    [
        (*FUSE, f"{LONG}.safetensors"),
        (*FUSE, "out.pt", "--data", f"{LONG}.npy"),
        (*FUSE, "out.pt", "--mix", "auto", "--evaluate", f"{LONG}:f"),
        (*FUSE, "out.pt", "--output", "9" * 5000),
        ("run", LONG),
        ("trace", f"{LONG}:f", "--input", "1,6"),
        ("trace", SMALL, "--input", "1,6", "--weights", f"{LONG}.pt"),
        ("demo", "--save", LONG),
        (*STUDY, "--data", LONG),
        (*STUDY[:-1], LONG),
    ],
)
def test_paths_that_are_too_long(folder: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder / "data"
    data.mkdir()
    monkeypatch.setenv("PARTIALFUSION_DATA", str(write_small_data(data)))
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(folder / "cache"))
    result = run(*words)
    fails(result)
    assert "unexpected" not in result.stderr


def test_inputs_that_never_end(folder: Path) -> None:
    os.mkfifo("pipe.npy")
    os.mkfifo("pipe.yaml")
    Path("zero.pt").symlink_to("/dev/zero")
    fails(run(*FUSE, "out.pt", "--data", "pipe.npy"), "pipe.npy is a pipe")
    fails(run("run", "pipe.yaml"), "pipe.yaml cannot be read: it is not a file")
    fails(run("trace", SMALL, "--input", "1,6", "--weights", "zero.pt"), "zero.pt is a device")


# Studies


def test_a_study_without_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(folder / "cache"))
    monkeypatch.setenv("PARTIALFUSION_DATA", "")
    fails(run(*STUDY, "--data", "nope"), "nope is not a folder, so MNIST cannot be read from it")
    assert not Path("results").exists()


def test_a_study_without_a_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "data").mkdir()
    data = write_small_data(folder / "data")
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(folder / "b.pt"))
    monkeypatch.setenv("PARTIALFUSION_DATA", "")
    fails(run(*STUDY, "--data", str(data)), "b.pt/checkpoints cannot be created: Not a directory; set PARTIALFUSION")


def test_a_folder_in_the_place_of_a_store(folder: Path) -> None:
    for name in ("Train", "Parameters", "Fused"):
        (folder / f"results/cells/{name}.jsonl").mkdir(parents=True)
    for words in (("study", "list"), ("study", "report")):
        result = run(*words, "--quick", "--results", "results")
        fails(result, ".jsonl is a folder")


# Numbers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("1,99999999999", "at most 268435456 numbers"),
        (f"1,{'9' * 30}", "at most 268435456 numbers"),
        ("1,6:quint8", "'quint8' is not a type of inputs"),
        ("1,6:Tensor", "'Tensor' is not a type of inputs"),
        ("1,-6", "whole numbers"),
        ("1,6.5", "whole numbers"),
    ],
)
def test_inputs_that_cannot_be(folder: Path, given: str, message: str) -> None:
    fails(run("trace", SMALL, "--input", given), f"--input {given}", message)
    Path("r.yaml").write_text(RECIPE.format(small=SMALL, out="out.pt").replace("1,6", f"'{given}'"))
    fails(run("run", "r.yaml"), "r.yaml:4: input:", message)


@pytest.mark.parametrize("seed", ["-1", str(2**63), "1.5", "x"])
def test_seeds(folder: Path, seed: str) -> None:
    result = run(*FUSE, "out.pt", "--seed", seed)
    assert result.exit_code == 2
    assert "--seed" in result.stderr
    Path("r.yaml").write_text(RECIPE.format(small=SMALL, out="out.pt") + f"seed: {seed}\n")
    fails(run("run", "r.yaml"), "r.yaml:6: seed: expected")


def test_numbers_beyond_all_bounds(folder: Path) -> None:
    result = run(*FUSE, "out.pt", "--budget", "1e308", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    np.save("x.npy", np.zeros((4, 6), np.float32))
    result = run(*FUSE, "out.pt", "--data", "x.npy", "--batch", f"1{'0' * 30}")
    fails(result, "batch size 1000000000000000000000000000000: a batch needs at least one sample, and at most")


def test_a_seed_keeps_all_its_digits(folder: Path) -> None:
    from partialfusion.cli.recipes import read_recipe

    Path("r.yaml").write_text(RECIPE.format(small=SMALL, out="out.pt") + f"seed: {2**53 + 1}\n")
    assert read_recipe(Path("r.yaml"))[0].seed == 2**53 + 1


def test_damaged_data(folder: Path) -> None:
    np.savez_compressed("x.npz", x=np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32))
    content = Path("x.npz").read_bytes()
    Path("x.npz").write_bytes(content[:200] + bytes([content[200] ^ 255]) + content[201:])
    fails(run(*FUSE, "out.pt", "--data", "x.npz"), "x.npz is not a .npz file of numbers")
