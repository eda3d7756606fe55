"""Files that want to fill the memory, never end, or lead elsewhere; what was found once is tried again here."""

from __future__ import annotations

import base64
import copy
import fcntl
import io
import json
import os
import resource
import threading
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import partialfusion as pf
from fuzz.limits import measured
from fuzz.mutations import deep, laughs, signed
from partialfusion.cli.recipes import read_recipe
from partialfusion.errors import CheckpointError, DataError, FusionError, OptionError, RecipeError
from partialfusion.io.checkpoints import load_into, load_state, save_state
from partialfusion.io.datafiles import load_batches
from partialfusion.io.digest import state_digest
from partialfusion.io.files import check_target, destination, replacing
from partialfusion.io.pretrained import _replacing
from partialfusion.io.storage import inspect, load, load_plan, save
from partialfusion.kernels.record import squeezed

X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))


@cache
def fusion() -> pf.Fusion:
    return pf.fuse([net().eval(), net().eval()], X, alpha=0.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(fusion(), tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path.write_bytes(signed(path.read_bytes(), edit))


def refused_cheaply(call: Callable[[], Any], kind: type[FusionError] = CheckpointError, match: str = "") -> None:
    with measured() as cost, pytest.raises(kind, match=match) as caught:
        call()
    assert cost.small, str(cost)
    assert "\n" not in str(caught.value)


# Bombs


@cache
def zeros() -> str:
    """64 MB in 80 kB."""
    return squeezed(bytes(1 << 26))


def test_a_plan_of_many_zeros(path: Path) -> None:
    def many(record: dict[str, Any]) -> dict[str, Any]:
        sizes = record["plan"]["spaces"]["0"]["pairs"]
        sizes[0][0] += (1 << 26) // 18
        return {**record, "plan": {**record["plan"], "arrays": zeros()}}

    change(path, many)
    for call in (lambda: inspect(path), lambda: load_plan(path), lambda: load(path, into=net())):
        refused_cheaply(call, match="more than such a file can hold")


def test_a_layout_of_many_lists(path: Path) -> None:
    text = base64.b85encode(zlib.compress(b"[" + b"[]," * (1 << 24) + b"[]]", 6)).decode()
    change(path, lambda record: {**record, "layout": text})
    refused_cheaply(lambda: inspect(path), match="cut off or longer than")


def test_large_tensors_of_few_numbers(path: Path) -> None:
    """Rows of one model and columns of the other: nothing of them is stored."""

    def large(record: dict[str, Any]) -> dict[str, Any]:
        layout = json.loads(zlib.decompress(base64.b85decode(record["layout"])))
        layout["tables"] = ["80" * 100_000, "40" * 100_000]
        layout["tensors"]["0.weight"] = {"shape": [100_000, 100_000], "elastic": [0, 1], "reach": [0, 1]}
        for name, tensor in layout["tensors"].items():
            tensor["reach"] = tensor["reach"] if name == "0.weight" else []
        return {**record, "layout": squeezed(json.dumps(layout).encode())}

    change(path, large)
    refused_cheaply(lambda: load(path, into=net()), match="far larger tensors than its .* numbers can fill")


def test_a_wide_space_without_channels(path: Path) -> None:
    def wide(record: dict[str, Any]) -> dict[str, Any]:
        for pair in record["plan"]["spaces"]["0"]["pairs"]:
            pair[1] = 10**12
        return record

    change(path, wide)
    refused_cheaply(lambda: inspect(path), match="channels that no model writes")


def test_packed_arrays(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1 << 24, 3), np.float32))
    refused_cheaply(lambda: load_batches(tmp_path / "x.npz", 2, like=X), DataError, "would become 201326")
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1 << 20, 3), np.float32))
    assert len(load_batches(tmp_path / "x.npz", 1 << 19, like=X)) == 2


def test_packed_weights(tmp_path: Path) -> None:
    written = io.BytesIO()
    torch.save({"0.weight": torch.zeros(1 << 25)}, written)
    with zipfile.ZipFile(written) as archive, zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
    del written
    refused_cheaply(lambda: load_state(tmp_path / "a.pt"), match="would become .* in memory")


def test_ways_of_packing_that_nobody_uses(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X.numpy())
    with (
        zipfile.ZipFile(tmp_path / "a.npz") as archive,
        zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_LZMA) as b,
    ):
        b.writestr("x.npy", archive.read("x.npy"))
    refused_cheaply(lambda: load_batches(tmp_path / "b.npz", 2, like=X), DataError, "in a way that is not read")


def test_shapes_beyond_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"(2, 3), }            ", b"(2, 3000000000000), }"))
    refused_cheaply(lambda: load_batches(tmp_path / "x.npy", 2, like=X), DataError, "not a .npy file")
    torch.save(torch.zeros(1, 1).expand(1 << 20, 1 << 10), tmp_path / "x.pt")
    refused_cheaply(lambda: load_batches(tmp_path / "x.pt", 2, like=X), DataError, "would become")
    torch.save({"0.weight": torch.zeros(1, 1).expand(1 << 20, 1 << 10)}, tmp_path / "w.pt")
    refused_cheaply(lambda: load_into(net(), tmp_path / "w.pt"), match="would become")
    torch.save(torch.eye(3).to_sparse(), tmp_path / "s.pt")
    refused_cheaply(lambda: load_batches(tmp_path / "s.pt", 2, like=X), DataError, "no dense tensor")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_headers_that_are_nested_deeply(path: Path, text: str) -> None:
    valid = path.read_bytes()
    path.write_bytes(signed(valid, lambda _: text))
    refused_cheaply(lambda: inspect(path), match="damaged: its header makes no sense")
    path.write_bytes(signed(valid, lambda record: {**record, "layout": squeezed(text.encode())}))
    refused_cheaply(lambda: inspect(path), match="damaged: its header makes no sense")


@pytest.mark.parametrize("key", ["alpha", "seed", "mix", "method"])
def test_recipes_in_headers(path: Path, key: str) -> None:
    def lacking(record: dict[str, Any]) -> dict[str, Any]:
        del record["recipe"][key]
        return record

    change(path, lacking)
    with pytest.raises(CheckpointError, match="damaged: its recipe makes no sense"):
        pf.restore(path, list(fusion().sources), X)


def test_recipes_that_grow(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    for content in (laughs(60), deep_yaml(), b"models: " + b"[" * 20_000, b"a: b\n" * 300_000):
        recipe.write_bytes(content)
        with measured() as cost, pytest.raises(RecipeError):
            read_recipe(recipe)
        assert cost.small, str(cost)


def deep_yaml() -> bytes:
    import random

    return b"models: " + deep(random.Random(0)).encode()


# Not regular files


@pytest.fixture
def odd(tmp_path: Path) -> list[Path]:
    """A pipe and a device that never ends, by the names of files."""
    found = []
    for suffix in (".safetensors", ".pt", ".npy", ".npz", ".yaml"):
        os.mkfifo(tmp_path / f"pipe{suffix}")
        os.symlink("/dev/zero", tmp_path / f"zero{suffix}")
        found += [tmp_path / f"pipe{suffix}", tmp_path / f"zero{suffix}"]
    return found


def test_inputs_that_never_end(odd: list[Path]) -> None:
    for path in odd:
        if path.suffix == ".yaml":
            refused_cheaply(lambda path=path: read_recipe(path), RecipeError, "it is not a file")
            continue
        reads: list[Callable[[], Any]] = [lambda path=path: load_batches(path, 2, like=X)]
        if path.suffix in (".safetensors", ".pt"):
            reads += [lambda path=path: load_state(path), lambda path=path: load(path, into=net())]
        for read in reads:
            refused_cheaply(read, match="is a (pipe|device); name the file")


def test_outputs_that_are_no_files(odd: list[Path], tmp_path: Path) -> None:
    for path in odd:
        kind = "device" if path.is_symlink() else "pipe"
        with pytest.raises(CheckpointError, match=f"cannot be written: it is a {kind}"):
            destination(path)
        with pytest.raises(CheckpointError, match=f"it is a {kind}"), replacing(path):
            pass
        assert not path.is_file()
    (tmp_path / "loop.safetensors").symlink_to(tmp_path / "loop.safetensors")
    with pytest.raises(CheckpointError, match="cannot be written: Too many levels"):
        save(fusion(), tmp_path / "loop.safetensors")
    for call in (
        lambda: save(fusion(), tmp_path / "a\0.safetensors"),
        lambda: load_state(tmp_path / "a\0.safetensors"),
    ):
        with pytest.raises(CheckpointError, match="embedded null byte"):
            call()


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "link.safetensors", tmp_path / "real/a.safetensors"
    link.symlink_to(real)
    for _ in range(2):  # a link to nothing yet, and to a file
        save(fusion(), link)
        assert link.is_symlink()
        assert inspect(real).model == "Sequential"
    (tmp_path / "other.safetensors").symlink_to(tmp_path / "notes.txt")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="it leads to .*notes.txt, whose name must end in .safetensors"):
        save(fusion(), tmp_path / "other.safetensors")


def test_inputs_are_not_outputs_through_links(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    original = tmp_path / "in/a.pt"
    save_state(net(), original)
    (tmp_path / "soft.pt").symlink_to(original)
    os.link(original, tmp_path / "hard.pt")
    for out in ("in/a.pt", "soft.pt", "hard.pt", "in/../in/a.pt"):
        for keep in (original, tmp_path / "in", tmp_path / "soft.pt"):
            with pytest.raises(CheckpointError, match="is an input and would be overwritten"):
                check_target(tmp_path / out, keep=[keep])
    assert check_target(tmp_path / "in/new.pt", keep=[tmp_path / "in"])


# What killed writers leave


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    target = tmp_path / "a.safetensors"
    left, other = tmp_path / f".{target.name}.0123abcd.tmp", tmp_path / ".b.safetensors.0123abcd.tmp"
    folder = tmp_path / f".{target.name}.4567abcd.tmp"
    folder.mkdir()
    (folder / "x").touch()
    for path in (left, other):
        path.write_bytes(b"half")
    save(fusion(), target)
    assert sorted(p.name for p in tmp_path.iterdir()) == [other.name, target.name]


def test_a_writer_that_lives_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.pt"
    with replacing(target) as first:
        first.write(b"first")
        with replacing(target) as second:
            second.write(b"second")
        assert target.read_bytes() == b"second"
    assert target.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a.pt"]


def test_many_writers_at_once(tmp_path: Path) -> None:
    target, problems = tmp_path / "a.pt", []

    def write(number: int) -> None:
        try:
            for _ in range(20):
                with replacing(target) as file:
                    file.write(bytes([number]) * 1000)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert len(set(target.read_bytes())) == 1
    assert os.listdir(tmp_path) == ["a.pt"]


def test_a_directory_whose_save_was_killed(tmp_path: Path) -> None:
    """The only moment at which it is under another name: between two steps of replacing it."""
    target, old = tmp_path / "model", tmp_path / ".model.0123abcd.old"
    old.mkdir()
    (old / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"a save was killed; rename .*\.model\.0123abcd\.old to it"):
        pf.from_pretrained(target)
    with _replacing(target) as folder:
        (folder / "new").touch()
    assert sorted(p.name for p in target.iterdir()) == ["new", "tokenizer.json"]
    assert os.listdir(tmp_path) == ["model"]


def test_where_files_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nobody knows whether a writer lives, and nothing is removed."""

    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    left = tmp_path / ".a.safetensors.0123abcd.tmp"
    left.touch()
    save(fusion(), tmp_path / "a.safetensors")
    assert left.exists()


def test_a_full_disk_under_a_torch_file(tmp_path: Path) -> None:
    """PyTorch's writer has an error of its own for what the system says."""
    path = tmp_path / "a.pt"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(CheckpointError, match="a.pt cannot be written: File too large; free some space"):
            save_state(nn.Linear(50, 50), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.pt"]


# Numbers


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70, 1.0, "1", None, True, np.float32(1), torch.tensor(1)])
def test_seeds(seed: Any) -> None:
    models = [net().eval(), net().eval()]
    calls: list[Callable[[], Any]] = [
        lambda: pf.trace(models[0], X, seed=seed),
        lambda: pf.fuse(models, X, seed=seed),
        lambda: pf.prune(models[0], X, seed=seed),
        lambda: pf.frontier(models, X, evaluate=lambda m: 0.0, seed=seed),
    ]
    for call in calls:
        with pytest.raises(OptionError, match="seed=.* must be a whole number from 0 to"):
            call()


@pytest.mark.parametrize("key", [0, None, ("0",), 0.5])
def test_keys_of_alpha(key: Any) -> None:
    with pytest.raises(OptionError, match="alpha: the key .* must be a string"):
        pf.fuse([net().eval(), net().eval()], X, alpha={key: 0.5})


def test_numbers_of_numpy(tmp_path: Path) -> None:
    models = [net().eval(), net().eval()]
    expected = pf.fuse(models, X, alpha=0.5, mix=[0.25, 0.75], seed=3)
    found = pf.fuse(models, X, alpha=np.float32(0.5), mix=np.array([0.25, 0.75]), seed=np.int64(3))
    assert state_digest(found.model) == state_digest(expected.model)
    assert found.recipe == expected.recipe
    save(found, tmp_path / "a.safetensors")
    assert inspect(tmp_path / "a.safetensors").recipe["alpha"] == 0.5
    each = pf.fuse(models, X, alpha={"0": np.float16(0.5)})
    assert each.recipe.alpha == {"0": 0.5}
    assert pf.Budget(dense=np.float32(1.5)).dense == 1.5
    small = pf.fuse(models, X, budget=np.int64(100))
    assert small.count.dense <= 100


@pytest.mark.parametrize(
    "budget", [1e308, 1e300, 10**300, 10**30, pf.Budget(params=1e300, flops=1e300), pf.Budget(channels=1e308)], ids=str
)
def test_budgets_beyond_any_result(budget: Any) -> None:
    models = [net().eval(), net().eval()]
    ensemble = pf.fuse(models, X, alpha=1.0, round_to=1)
    assert pf.fuse(models, X, budget=budget, round_to=1).count.dense == ensemble.count.dense
    assert pf.prune(models[0], X, budget=budget).count.ratio == 1.0


def test_positions_of_outputs_of_numpy() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.layers(x)
            return y, x

    models = [Two().eval(), Two().eval()]
    found = pf.fuse(models, X, output=np.int64(0))
    assert found.inputs.output == 0
    assert type(found.inputs.output) is int
    for output in (True, np.True_, 0.0, np.float32(0), [0]):
        with pytest.raises(OptionError, match="output=.* must be the name of an entry"):
            pf.fuse(models, X, output=output)


@pytest.mark.parametrize("given", ["no", "False", 0, 1, None, 0.5, [], torch.tensor(True)])
def test_flags_that_are_none(given: Any, path: Path, tmp_path: Path) -> None:
    models = [net().eval(), net().eval()]
    score: dict[str, Any] = {"evaluate": lambda model: 0.0}
    calls: dict[str, list[Callable[..., Any]]] = {
        "check": [
            lambda **flag: pf.trace(models[0], X, **flag),
            lambda **flag: pf.fuse(models, X, **flag),
            lambda **flag: pf.prune(models[0], X, **flag),
            lambda **flag: pf.frontier(models, X, **score, **flag),
            lambda **flag: pf.restore(path, models, X, **flag),
            lambda **flag: pf.export_onnx(models[0], X, tmp_path / "a.onnx", **flag),
            lambda **flag: pf.fuse_files(["a", "b"], "out", X, **flag),
        ],
        "allow_shortfall": [
            lambda **flag: pf.fuse(models, X, **flag),
            lambda **flag: pf.prune(models[0], X, **flag),
            lambda **flag: pf.frontier(models, X, **score, **flag),
            lambda **flag: pf.fuse_files(["a", "b"], "out", X, **flag),
        ],
    }
    for option, functions in calls.items():
        for call in functions:
            with pytest.raises(OptionError, match=f"{option}=.* must be True or False"):
                call(**{option: given})


def test_flags_of_numpy() -> None:
    models = [net().eval(), net().eval()]
    found = pf.fuse(models, X, check=np.True_, allow_shortfall=np.False_, refit=np.False_)
    assert found.recipe.refit == 0.0
    for refit in ("no", "True", None, float("nan"), np.array([1.0, 2.0])):
        with pytest.raises(OptionError, match="refit=.* must be True, False, or the strength"):
            pf.fuse(models, X, refit=refit)


@pytest.mark.parametrize(
    "make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, lambda x: torch.nested.nested_tensor([x])]
)
@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors)")
def test_inputs_that_are_not_dense(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    models = [net().eval(), net().eval()]
    with pytest.raises(OptionError, match="example_inputs: input 0 is no dense tensor; pass inputs like"):
        pf.fuse(models, make(X))
    with pytest.raises(DataError, match="input 0 is no dense tensor"):
        pf.fuse(models, X, data=[make(X)])


def test_a_single_number_of_any_stride() -> None:
    model = nn.Linear(1, 1)
    usual = state_digest(model)
    twin = copy.deepcopy(model)
    twin.weight.data = torch.as_strided(model.weight.data.expand(1, 1).clone(), (1, 1), (7, 5))
    assert twin.weight.is_contiguous()
    assert state_digest(twin) == usual
