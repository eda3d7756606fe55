"""Files that are not what they should be, and folders that refuse: one clear error, and nothing is changed."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import partialfusion as pf
from partialfusion.errors import CheckpointError, OptionError
from partialfusion.io import header
from partialfusion.io.checkpoints import save_state
from partialfusion.io.storage import inspect, load, load_plan, save
from zoo import ZOO, identical, mlp, randomised, snapshot

X = ZOO["mlp"].inputs()


@cache
def fusion(name: str = "mlp") -> pf.Fusion:
    exhibit = ZOO[name]
    return pf.fuse([exhibit.model(0), exhibit.model(1)], exhibit.inputs(), alpha=0.3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(fusion(), tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def refused(path: Path, match: str = "", into: nn.Module | None = None) -> str:
    """The error that loading must raise: one line that names the file; the instance stays as it was."""
    into = into or randomised(mlp(), 7)
    before = snapshot(into)
    with pytest.raises(CheckpointError, match=match) as caught:
        load(path, into=into)
    assert identical(before, into)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def header_length(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


# Damage


def test_truncated_anywhere(path: Path) -> None:
    content = path.read_bytes()
    start = header_length(content)
    cuts = {*range(1, 20), *range(20, len(content), 97), start - 1, start, start + 1, len(content) - 1}
    for cut in sorted(cuts):
        path.write_bytes(content[:cut])
        refused(path, "truncated or not a safetensors file; save or copy it again")
    path.write_bytes(content + b"\0")
    refused(path, "not a safetensors file")


def test_any_flipped_bit_of_the_numbers_is_noticed(path: Path) -> None:
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    start = header_length(content)
    for at in [start, len(content) - 1, *rng.integers(start, len(content), 150).tolist()]:
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << rng.integers(8))]) + content[at + 1 :])
        refused(path, "damaged: its numbers are not those that were written; save or copy it again")


def test_any_flipped_bit_of_the_header_is_noticed_or_means_nothing(path: Path) -> None:
    """Some bytes may stand for the same text, such as the spaces at the end."""
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    harmless = 0
    for at in [*range(8), *rng.integers(8, header_length(content), 400).tolist()]:
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << rng.integers(8))]) + content[at + 1 :])
        with suppress(CheckpointError):
            assert identical(snapshot(fusion().model), load(path, into=mlp()))
            harmless += 1
    assert harmless < 20


def test_tensors_that_changed_places(path: Path) -> None:
    content = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    swapped = {**content, "0.bias": content["5.bias"], "5.bias": content["0.bias"]}
    safetensors.torch.save_file(swapped, path, metadata)
    refused(path, "damaged")
    safetensors.torch.save_file({n: t for n, t in content.items() if n != "0.bias"}, path, metadata)
    refused(path, "damaged: its tensors are not those that its header lists")
    safetensors.torch.save_file({**content, "0.bias": content["0.bias"].double()}, path, metadata)
    refused(path, "damaged")
    safetensors.torch.save_file({**content, "0.bias": content["0.bias"][:-1].clone()}, path, metadata)
    refused(path, "damaged: 0.bias has shape")


def with_record(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Write the file again with another record, and its right hash."""
    content = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        record = json.loads(file.metadata()[header.RECORD])
    change(record)
    text = json.dumps(record)
    safetensors.torch.save_file(content, path, {header.RECORD: text, header.DIGEST: header._hash(text)})


@pytest.mark.parametrize("number", [0, 5, 99, "1", True, None])
def test_formats_of_other_versions(path: Path, number: object) -> None:
    with_record(path, lambda r: r.update(format=number, partialfusion="9.1"))
    message = refused(path, "has format .* written by partialfusion 9.1")
    assert "install the version that wrote it" in message
    with pytest.raises(CheckpointError, match="has format"):
        inspect(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.clear(),
        lambda r: r.pop("layout"),
        lambda r: r.update(plan=3),
        lambda r: r.update(layout="x"),
        lambda r: r.update(recipe=None),
        lambda r: r.update(sources=[{}]),
        lambda r: r["plan"].update(arrays=""),
        lambda r: r["plan"].update(mix=[1.0]),
        lambda r: r["plan"]["spaces"].pop("0"),
    ],
)
def test_records_that_make_no_sense(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    with_record(path, change)
    refused(path, "damaged: its header makes no sense .*; save or copy it again")
    with pytest.raises(CheckpointError, match="damaged"):
        load_plan(path)


# Foreign files


def test_foreign_files(tmp_path: Path) -> None:
    model = mlp()
    torch.save(model.state_dict(), tmp_path / "torch.pt")
    refused(tmp_path / "torch.pt", "not a safetensors file")
    torch.save(model.state_dict(), tmp_path / "torch.safetensors", _use_new_zipfile_serialization=False)
    refused(tmp_path / "torch.safetensors", "not a safetensors file")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "plain.safetensors")
    refused(tmp_path / "plain.safetensors", "not of a saved fusion; read it with")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "other.safetensors", {"format": "pt", "who": "me"})
    refused(tmp_path / "other.safetensors", "not of a saved fusion")
    save_state(fusion().model, tmp_path / "dense.safetensors")
    refused(tmp_path / "dense.safetensors", "not of a saved fusion")
    (tmp_path / "text.safetensors").write_text("hello, world, this is a file\n")
    refused(tmp_path / "text.safetensors", "not a safetensors file")


def test_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.safetensors", "there is no such file; check the name")
    refused(tmp_path, "is a folder; name the file in it")
    (tmp_path / "empty.safetensors").touch()
    refused(tmp_path / "empty.safetensors", "is empty; save or copy it again")
    (tmp_path / "broken.safetensors").symlink_to(tmp_path / "gone")
    refused(tmp_path / "broken.safetensors", "no such file")


# Other models


def test_other_models(path: Path) -> None:
    other = "does not fit"
    refused(path, f"{other} Sequential: it lacks: 8.weight", nn.Sequential(*mlp(), nn.Linear(5, 5)))
    refused(path, f"{other} Sequential: it also has: 7.weight", mlp()[:-1])
    refused(path, f"{other} ResNet", ZOO["resnet"].model(0))
    refused(path, f"{other} Sequential: it also has: 0.bias", mlp(bias=False))

    def outputs(n: int) -> nn.Module:
        return nn.Sequential(*mlp()[:-1], nn.Linear(12, n))

    assert load(path, into=outputs(5))[7].out_features == 5
    message = refused(path, r"shapes differ: 7.weight \(5, \d+\) in the file and \(6, 12\) in the model", outputs(6))
    assert "only the widths of elastic spaces may differ" in message
    refused(path, r"shapes differ: 0.weight \(\d+, 10\)", nn.Sequential(nn.Linear(11, 12), *mlp()[1:]))
    scalar = mlp()
    scalar[0].bias = nn.Parameter(torch.zeros(()))
    refused(path, "shapes differ: 0.bias", scalar)


def test_tied_where_the_file_is_not(path: Path) -> None:
    tied, x = mlp().eval(), torch.randn(3, 10)
    expected = pf.load(path, into=mlp().eval())(x)
    tied[2].bias = tied[7].bias
    assert torch.equal(pf.load(path, into=tied)(x), expected)
    assert tied[2].bias is tied[7].bias


def test_kinds_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save(fusion("vgg-bn"), path)
    into = ZOO["vgg-bn"].model(7)
    into[1].num_batches_tracked = torch.tensor(0.0)
    refused(path, r"1.num_batches_tracked \(\) is torch.int64 in the file and torch.float32 in the model", into)
    into[1].num_batches_tracked = torch.zeros(3, dtype=torch.int64)
    refused(path, "shapes differ: 1.num_batches_tracked", into)


def test_instances_without_memory(path: Path) -> None:
    with torch.device("meta"):
        empty = mlp()
    with pytest.raises(CheckpointError, match="has no memory yet .* build the model on a device"):
        load(path, into=empty)
    with pytest.raises(CheckpointError, match="has no memory yet"):
        load(path, into=nn.Sequential(nn.LazyLinear(12), *mlp()[1:]))
    with pytest.raises(OptionError, match="into is a type"):
        load(path, into=nn.Linear)  # type: ignore[arg-type]


def test_instances_that_cannot_be_copied(path: Path) -> None:
    class Stubborn(nn.Sequential):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise RuntimeError("not me")

    refused(path, "Stubborn could not be copied .* not me", Stubborn(*mlp()))


# Saving


def test_paths_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "file").touch()
    for name, why in {
        "a.pt": "its name must end in .safetensors",
        "folder.safetensors": "it is a folder; name a file in it",
        "none/a.safetensors": "there is no folder .*; create it first",
        "file/a.safetensors": "there is no folder",
    }.items():
        with pytest.raises(CheckpointError, match=f"{name} cannot be written: {why}"):
            save(fusion(), tmp_path / name)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CheckpointError, match="no permission in .*; choose another folder"):
        save(fusion(), tmp_path / "a.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.safetensors"]


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the superuser's right to write and read anywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_permissions() -> None:
    result, model = fusion(), mlp()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        save(result, path)
        os.chmod(path, 0o000)
        os.chmod(folder, 0o555)
        with as_nobody():
            with pytest.raises(CheckpointError, match="cannot be written: .* choose another folder"):
                save(result, path)
            with pytest.raises(CheckpointError, match="cannot be read: .*; check the name and the permissions"):
                load(path, into=model)
        os.chmod(folder, 0o700)
        assert [p.name for p in Path(folder).iterdir()] == ["a.safetensors"]


def test_names_that_the_system_refuses(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 300}.safetensors"
    with pytest.raises(CheckpointError, match="cannot be written: File name too long"):
        save(fusion(), path)
    refused(path, "cannot be read: File name too long; check the name")


def unchanged(path: Path, content: bytes) -> bool:
    return path.read_bytes() == content and [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_file_that_grows_too_large(path: Path) -> None:
    """The system really stops the writing in the middle."""
    content = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(CheckpointError, match="cannot be written: File too large; free some space"):
            save(fusion("resnet"), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert unchanged(path, content)
    save(fusion("resnet"), path)
    assert path.stat().st_size > 20_000


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    content = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device; free some space"):
        save(fusion("resnet"), path)
    assert unchanged(path, content)


def test_interrupted_from_the_keyboard(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(fusion("resnet"), path)
    assert unchanged(path, content)


def test_the_file_is_on_the_disk_before_it_takes_its_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note(handle: int) -> None:
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else f"{os.fstat(handle).st_size} bytes")
        fsync(handle)

    def move(a: object, b: object) -> None:
        assert Path(str(a)).parent == Path(str(b)).parent
        events.append("replace")
        replace(str(a), str(b))

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", move)
    save(fusion("resnet"), path)
    assert events == [f"{path.stat().st_size} bytes", "replace", "folder"]
