"""Checkpoint files: what loads, what is refused, and that nothing is half-written or run."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.errors import CheckpointError
from partialfusion.io import checkpoints
from partialfusion.io.checkpoints import check_writable, load_fused, load_into, load_state, save_fusion, save_state

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 3))


class Tied(nn.Module):
    """A head that shares its weight with the embedding, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 4, bias=False)
        self.head = nn.Linear(5, 4, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor([2.0]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x) + self.head(x) * self.scale


class Evil:
    """Creates a file when it is unpickled without restriction."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def refused(match: str, call: object, *args: object, error: type[Exception] = CheckpointError) -> str:
    """The message of the error that a call must raise: one line."""
    with pytest.raises(error, match=match) as caught:
        call(*args)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Saving and loading


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    source, target = nn.Sequential(mlp(), nn.BatchNorm1d(3)), nn.Sequential(mlp(), nn.BatchNorm1d(3))
    save_state(source, tmp_path / f"a{suffix}")
    load_into(target, tmp_path / f"a{suffix}")
    assert same(source, target)
    assert [p.name for p in tmp_path.iterdir()] == [f"a{suffix}"]


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_tied_weights(tmp_path: Path, suffix: str) -> None:
    source, target = Tied(), Tied()
    save_state(source, path := tmp_path / f"a{suffix}")
    assert set(load_state(path)) == {"embed.weight", "head.weight"}
    load_into(target, path)
    assert same(source, target)
    assert target.head.weight is target.embed.weight


def test_tied_weights_stored_once(tmp_path: Path) -> None:
    source, target = Tied(), Tied()
    safetensors.torch.save_model(source, str(path := tmp_path / "a.safetensors"))
    assert len(load_state(path)) == 1
    load_into(target, path)
    assert same(source, target)


def test_parameters_that_are_views(tmp_path: Path) -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(torch.arange(16.0).reshape(4, 4).T)
    save_state(model, path := tmp_path / "a.safetensors")
    assert torch.equal(load_state(path)["weight"], model.weight)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_state_dict_inside_a_dict(tmp_path: Path, key: str) -> None:
    source, target = mlp(), mlp()
    torch.save({key: source.state_dict(), "epoch": 3, "optimiser": {"lr": 0.1}}, path := tmp_path / "a.pt")
    load_into(target, path)
    assert same(source, target)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers(tmp_path: Path, prefix: str) -> None:
    source, target = mlp(), mlp()
    torch.save({f"{prefix}{n}": t for n, t in source.state_dict().items()}, path := tmp_path / "a.pt")
    assert set(load_state(path)) == set(source.state_dict())
    load_into(target, path)
    assert same(source, target)


def test_prefix_that_belongs_to_the_model(tmp_path: Path) -> None:
    source, target = nn.DataParallel(mlp()), nn.DataParallel(mlp())
    save_state(source, tmp_path / "wrapped.pt")
    load_into(target, tmp_path / "wrapped.pt")
    assert same(source, target)
    save_state(source.module, tmp_path / "bare.pt")
    load_into(target := nn.DataParallel(mlp()), tmp_path / "bare.pt")
    assert same(source, target)


def test_old_checkpoints_without_batch_counters(tmp_path: Path) -> None:
    source, target = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    nn.init.normal_(source.weight)
    state = {n: t for n, t in source.state_dict().items() if n != "num_batches_tracked"}
    safetensors.torch.save_file(state, path := tmp_path / "a.safetensors")
    load_into(target, path)
    assert torch.equal(source.weight, target.weight)


def test_precision_may_differ(tmp_path: Path) -> None:
    source, target = mlp().half(), mlp()
    save_state(source, path := tmp_path / "a.safetensors")
    load_into(target, path)
    assert torch.equal(source[0].weight.float(), target[0].weight)


# Files that are refused


def damaged(path: Path, keep: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    return path


@pytest.mark.parametrize("keep", [0.001, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_truncated(tmp_path: Path, suffix: str, keep: float) -> None:
    model = mlp()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    save_state(mlp(), path := tmp_path / f"a{suffix}")
    message = refused("truncated", load_into, model, damaged(path, keep))
    assert str(path) in message
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_truncated_legacy_torch_file(tmp_path: Path, keep: float) -> None:
    torch.save(mlp().state_dict(), path := tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    refused("truncated", load_state, damaged(path, keep))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_missing_empty_folder_and_junk(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    assert str(path) in refused("no such file", load_state, path)
    path.write_bytes(b"")
    refused("is empty", load_state, path)
    for junk in (b"hello, not a checkpoint", bytes(range(256)) * 20, b"PK\x03\x04" + b"x" * 50):
        path.write_bytes(junk)
        message = refused("truncated or not", load_state, path)
        assert "weights_only" not in message
    path.unlink()
    path.mkdir()
    refused("folder", load_state, path)


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, torch.ones(3), {"state_dict": {"a": 1}}, 7])
def test_no_state_dict_in_it(tmp_path: Path, content: object) -> None:
    torch.save(content, path := tmp_path / "a.pt")
    refused(r"not a checkpoint.*state_dict", load_state, path)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("nested", [False, True])
def test_code_in_a_pickle_is_not_run(tmp_path: Path, form: str, nested: bool) -> None:
    trap, path = tmp_path / "trap", tmp_path / "a.pt"
    content: object = {"state_dict": mlp().state_dict(), "extra": Evil(trap)} if nested else Evil(trap)
    if form == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    message = refused(r"refused|truncated or not", load_state, path)
    assert "weights_only" not in message
    assert not trap.exists()
    if form != "pickle":
        assert "mkdir" in message
    # the trap is real: unrestricted loading springs it
    if form == "pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert trap.exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_whole_pickled_model_and_torchscript(tmp_path: Path) -> None:
    torch.save(mlp(), path := tmp_path / "a.pt")
    assert "state_dict()" in refused("more than tensors", load_state, path)
    torch.jit.save(torch.jit.trace(mlp(), torch.ones(1, 6)), path)
    refused("TorchScript", load_state, path)


def test_of_another_model(tmp_path: Path) -> None:
    model = mlp()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    other = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 3))
    save_state(other, path := tmp_path / "deeper.pt")
    message = refused("does not fit Sequential", load_into, model, path)
    for part in ("deeper.pt", "5.weight (3, 8)", "4.weight (8, 8) in the file and (3, 8) in the model"):
        assert part in message
    save_state(nn.Sequential(nn.Linear(6, 8)), path := tmp_path / "short.safetensors")
    assert "it lacks: 2.weight (8, 8), 2.bias (8,), 4.weight (3, 8), +1" in refused("another", load_into, model, path)
    save_state(mlp(12), path := tmp_path / "wide.safetensors")
    message = refused("another", load_into, model, path)
    assert "0.weight (12, 6) in the file and (8, 6) in the model" in message
    assert "factory" in message
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_numbers_of_another_kind(tmp_path: Path) -> None:
    for dtype in (torch.int8, torch.complex64):
        torch.save({n: t.to(dtype) for n, t in mlp().state_dict().items()}, path := tmp_path / "a.pt")
        assert "0.weight (8, 6)" in refused(f"{dtype}", load_into, mlp(), path)


def test_models_without_memory(tmp_path: Path) -> None:
    save_state(mlp(), path := tmp_path / "a.pt")
    refused("no memory", load_into, mlp().to("meta"), path)
    refused("no memory", load_into, nn.Sequential(nn.LazyLinear(3)), path)


# Writing


def test_unwritable(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("x")
    (tmp_path / "folder.pt").mkdir()
    refused("no folder", save_state, mlp(), tmp_path / "nowhere" / "a.pt")
    refused("no folder", save_state, mlp(), file / "a.pt")
    refused("is a folder", save_state, mlp(), tmp_path / "folder.pt")
    assert ".safetensors" in refused("must end in", save_state, mlp(), tmp_path / "a.onnx")
    refused("must end in", check_writable, tmp_path / "a")
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder.pt"}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("trouble", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, trouble: BaseException
) -> None:
    path = tmp_path / f"a{suffix}"
    save_state(mlp(), path)
    before = path.read_bytes()

    def fail(*args: object) -> None:
        file = next(a for a in args if isinstance(a, io.BufferedWriter))
        file.write(b"half")
        raise trouble

    monkeypatch.setattr(checkpoints.torch, "save", fail)
    monkeypatch.setattr(checkpoints, "write_tensors", fail)
    if isinstance(trouble, OSError):
        assert "No space left" in refused("cannot be written", save_state, mlp(), path)
    else:
        with pytest.raises(KeyboardInterrupt):
            save_state(mlp(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (link := tmp_path / "a.pt").symlink_to(tmp_path / "store" / "real.pt")
    save_state(mlp(), link)
    assert link.is_symlink()
    assert load_state(tmp_path / "store" / "real.pt")


def test_inputs_are_not_overwritten(tmp_path: Path) -> None:
    save_state(mlp(), path := tmp_path / "a.pt")
    (link := tmp_path / "link.pt").symlink_to(path)
    refused("overwritten", lambda: check_writable(link, keep=[path]))
    assert check_writable(tmp_path / "b.pt", keep=[path]) == tmp_path / "b.pt"


# Fused files


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_fused_file_loads_into_the_class(tmp_path: Path, suffix: str) -> None:
    a, b, x = mlp(), mlp(), torch.randn(5, 6)
    result = pf.fuse([a, b], x, alpha={"0": 0.5, "2": 0.25}, mix=[0.3, 0.7])
    save_fusion(result, path := tmp_path / f"f{suffix}")
    base = mlp()
    before = {n: t.clone() for n, t in base.state_dict().items()}
    loaded = load_fused(base, path)
    assert same(loaded, result.model)
    assert torch.equal(loaded(x), result.model(x))
    assert loaded[0].out_features == 12
    assert all(torch.equal(t, before[n]) for n, t in base.state_dict().items())


def test_fused_file_of_another_class(tmp_path: Path) -> None:
    save_fusion(pf.fuse([mlp(), mlp()], torch.ones(1, 6)), path := tmp_path / "f.safetensors")
    refused("does not fit Linear", load_fused, nn.Linear(6, 3), path)


def test_buffers_outside_the_file_stay(tmp_path: Path) -> None:
    result = pf.fuse([Tied(), Tied()], torch.ones(1, 5))
    save_fusion(result, path := tmp_path / "f.safetensors")
    loaded, x = load_fused(Tied(), path), torch.randn(3, 5)
    assert torch.equal(loaded.scale, torch.tensor([2.0]))
    assert torch.equal(loaded(x), result.model(x))
