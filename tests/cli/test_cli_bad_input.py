"""Each command on bad input and interrupted: one clear line, a code that is not zero, nothing half-written."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from calls import CONV, MODULE, NETS, SMALL, fails, run

import partialfusion as pf
from partialfusion.io.checkpoints import load_model, save_state
from partialfusion.io.factories import build
from study.small_data import write_small_data

X = ("--input", "2,6")
OUT = {"frontier": "out.html"}  # else out.safetensors
COMMANDS: dict[str, tuple[str, ...]] = {
    "trace": ("trace", SMALL, *X, "--weights", "a.safetensors"),
    "fuse": ("fuse", SMALL, "a.safetensors", "b.pt", *X),
    "prune": ("prune", SMALL, "a.safetensors", *X),
    "refit": ("refit", SMALL, "f.safetensors", "a.safetensors", "b.pt", *X, "--data", "x.npy"),
    "frontier": ("frontier", SMALL, "a.safetensors", "b.pt", *X, "--evaluate", "v.npz"),
    "convert": ("convert", SMALL, "f.safetensors"),
    "bench": ("bench", SMALL, "f.safetensors", *X, "--seconds", "0"),
    "run": ("run", "r.yaml"),
}
WRITING = ("fuse", "prune", "refit", "frontier", "convert", "run")
RECIPE = f"""
factory: {SMALL}
models: [{{checkpoint: a.safetensors}}, {{checkpoint: b.pt}}]
input: 2,6
output: out.safetensors
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the commands read, made once."""
    home = tmp_path_factory.mktemp("prepared")
    with contextlib.chdir(home):
        Path(f"{MODULE}.py").write_text(NETS)
        models = [build(SMALL, seed=seed) for seed in (0, 1)]
        for model, path in zip(models, ("a.safetensors", "b.pt"), strict=True):
            save_state(model, path)
        pf.save(pf.fuse(models, torch.ones(2, 6), alpha=0.5), "f.safetensors")
        x = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
        np.save("x.npy", x)
        np.savez("v.npz", x=x, labels=np.arange(40) % 3)
        save_state(build(CONV), "conv.pt")
        Path("r.yaml").write_text(RECIPE)
    return home


@pytest.fixture
def ready(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with all that the commands read."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(command: str, *changes: tuple[str, str], out: str | None = None) -> tuple[str, ...]:
    """The words of a command with some replaced; those of a recipe are replaced in the file."""
    words, text = COMMANDS[command], RECIPE
    for old, new in changes:
        words = tuple(new if word == old else word for word in words)
        text = text.replace(old, new)
    target = out or OUT.get(command, "out.safetensors")
    Path("r.yaml").write_text(text.replace("out.safetensors", target))
    return words if command not in WRITING or command == "run" else (*words, "--out", target)


def content(folder: Path) -> dict[str, bytes]:
    files = [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def refuses(folder: Path, words: tuple[str, ...], *messages: str) -> None:
    before = content(folder)
    fails(run(*words), *messages)
    assert content(folder) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_good_input(ready: Path, command: str) -> None:
    """What the others vary is right to begin with."""
    result = run(*call(command))
    assert (result.exit_code, result.stderr) == (0, "")
    assert (ready / OUT.get(command, "out.safetensors")).exists() == (command in WRITING)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("trace", "a.safetensors"),
        *((command, file) for command in ("fuse", "run", "refit", "frontier") for file in ("a.safetensors", "b.pt")),
        ("prune", "a.safetensors"),
        ("refit", "f.safetensors"),
        ("refit", "x.npy"),
        ("frontier", "v.npz"),
        ("convert", "f.safetensors"),
        ("bench", "f.safetensors"),
    ],
)
def test_missing_file(ready: Path, command: str, file: str) -> None:
    gone = f"gone.{file.rpartition('.')[2]}"
    refuses(ready, call(command, (file, gone)), f"{gone}: there is no such file")


def test_missing_recipe(ready: Path) -> None:
    refuses(ready, ("run", "gone.yaml"), "gone.yaml cannot be read")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (f"{MODULE}:smal", "did you mean small"),
        ("nets_nowhere:net", "there is no module 'nets_nowhere'"),
        (f"{MODULE}:number", "is of type int"),
        (f"{MODULE}:mlp", "failed: TypeError"),
        ("small", "package.module:factory"),
    ],
)
def test_wrong_factory(ready: Path, command: str, factory: str, message: str) -> None:
    refuses(ready, call(command, (SMALL, factory)), f"factory '{factory}'", message)


@pytest.mark.parametrize("command", COMMANDS)
def test_mismatched_models(ready: Path, command: str) -> None:
    """A factory of another network; for several models, one file of another network too."""
    refuses(ready, call(command, (SMALL, CONV)), "does not fit")
    if command in ("fuse", "run", "refit", "frontier"):
        refuses(ready, call(command, ("b.pt", "conv.pt")), "conv.pt does not fit Sequential")
    if command in ("fuse", "frontier"):
        words = call(command, (SMALL, CONV), ("a.safetensors", "conv.pt"))
        refuses(ready, (*words, "--factory", SMALL), "models[0] has a different architecture")


@pytest.mark.parametrize("command", WRITING)
def test_unwritable_output(ready: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suffix = OUT.get(command, "out.safetensors").removeprefix("out")
    Path(f"taken{suffix}").mkdir()
    Path("sealed").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    access = os.access
    if access("sealed", os.W_OK):  # the superuser may write everywhere
        monkeypatch.setattr(os, "access", lambda p, mode: os.path.basename(p) != "sealed" and access(p, mode))
    for out, message in {
        f"taken{suffix}": "it is a folder",
        f"nowhere/out{suffix}": "create it first",
        f"a.safetensors/out{suffix}": "there is no folder",
        f"sealed/out{suffix}": "no permission",
        "out.doc": "must end in",
    }.items():
        refuses(ready, call(command, out=out), f"{out} cannot be written", message)


@pytest.mark.parametrize("command", WRITING)
def test_a_disk_that_is_full(ready: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there stays whole, and nothing is left beside it."""
    out = Path(OUT.get(command, "out.safetensors"))
    out.write_bytes(b"old")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refuses(ready, call(command), f"{out} cannot be written: No space left on device")


def test_demo_and_study_that_cannot_write(ready: Path) -> None:
    Path("folder.html").mkdir()
    Path("data").mkdir()
    data = write_small_data(Path("data").absolute())
    for words, message in (
        (("demo", "--page", "folder.html"), "it is a folder"),
        (("demo", "--page", "nowhere/p.html"), "create it first"),
        (("demo", "--page", "p.txt"), "must end in .html"),
        (("demo", "--save", "x.npy"), "cannot create the folder x.npy"),
        (("study", "run", "params_p", "--quick", "--workers", "0", "--results", "x.npy"), "cannot be created"),
    ):
        refuses(ready, (*words, "--data", str(data)) if words[0] == "study" else words, message)


# Interrupted: a process that gets the signal while it works

SERVER = """
import json, os, signal, sys
import torch
import partialfusion as pf
from partialfusion.core import progress
from partialfusion.cli import main

torch.set_num_threads(1)  # threads do not survive a fork
nets = [torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.GELU(), torch.nn.Linear(4, 2)) for _ in range(2)]
pf.fuse(nets, torch.ones(1, 2))  # what takes long to import is imported once for all
pf.prune(nets[0], torch.ones(1, 2))
for line in sys.stdin:
    folder, log, step, fraction, words = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(os.path.join(log, name), os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    os.chdir(folder)
    sys.argv[1:] = words

    def interrupt(label, done):
        if step in label and done >= fraction:
            progress._ProgressLog = lambda: progress.silent
            os.kill(os.getpid(), signal.SIGINT)

    progress._ProgressLog = lambda: interrupt
    main()
"""


class Server:
    """Runs commands, each in a process of its own that gets SIGINT when it comes to a step."""

    def __init__(self, log: Path) -> None:
        self.log = log
        command, env = [sys.executable, "-c", SERVER], {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=log, env=env
        )

    def run(self, step: str, *words: str, fraction: float = 0.0) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of a command that is interrupted at a step, at a fraction of the work."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([os.getcwd(), str(self.log), step, fraction, words]) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return code, (self.log / "out").read_text(), (self.log / "err").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("command", "step", "options"),
    [
        ("fuse", "refitting 2", ("--data", "x.npy", "--refit")),
        ("prune", "tracing", ()),
        ("refit", "refitting 2", ()),
        ("run", "tracing", ()),
        ("convert", "writing", ()),
        ("bench", "timing", ()),
        ("demo", "training A", ()),
        ("study", "cells", ()),
    ],
)
def test_interrupted(ready: Path, server: Server, command: str, step: str, options: tuple[str, ...]) -> None:
    Path("data").mkdir()
    others = {
        "demo": ("demo", "--save", "digits"),
        "study": ("study", "run", "params_p", "--quick", "--workers", "1", "--data", "data", "--results", "results"),
    }
    if command == "study":
        write_small_data(Path("data"))
    words = (*(others[command] if command in others else call(command)), *options)
    before = content(ready)
    code, printed, errors = server.run(step, *words)
    assert (code, printed) == (130, "")
    assert errors.splitlines()[-1] == "error: interrupted"
    assert all("not be comparable" in line for line in errors.splitlines()[:-1])  # of a study, on other data
    left = content(ready).keys() - before.keys()
    assert {path for path in left if not path.startswith("results/")} == set()
    assert all(path.endswith((".lock", ".jsonl")) for path in left)  # of a study, which goes on there


def test_interrupted_frontier(ready: Path, server: Server) -> None:
    before = content(ready)
    code, out, message = server.run("alpha 0.4", *call("frontier"), "--out", "out.csv")
    assert code == 130
    assert message == "error: interrupted; the 5 networks measured so far are in out.html, out.csv\n"
    assert "not every network was measured" in out
    assert content(ready).keys() - before.keys() == {"out.html", "out.csv"}
    assert len(Path("out.csv").read_text().splitlines()) == 6


def test_interrupted_search(ready: Path, server: Server) -> None:
    """The search goes on with what it has; the file is whole, and the code says that it was interrupted."""
    before = content(ready)
    code, out, message = server.run("(1 of 2)", *call("prune"), fraction=1e-9)
    assert code == 130
    assert message == "error: interrupted; out.safetensors holds the best result found so far\n"
    assert "interrupted, the best found until then" in out
    assert content(ready).keys() - before.keys() == {"out.safetensors"}
    assert load_model(SMALL, "out.safetensors")(torch.ones(2, 6)).shape == (2, 3)


def test_an_interrupt_that_was_swallowed(ready: Path, server: Server) -> None:
    """Code of others may catch the exception: the next step is not begun all the same."""
    Path("swallowing.py").write_text(
        f"import os, signal\nfrom {MODULE} import small\n\n\ndef net():\n    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n    except KeyboardInterrupt:\n        pass\n    return small()\n"
    )
    before = content(ready)
    assert server.run("no such step", *call("fuse", (SMALL, "swallowing:net"))) == (130, "", "error: interrupted\n")
    assert content(ready).keys() == before.keys()
