"""Unlabelled inputs in files: what is read, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from partialfusion.errors import CheckpointError, DataError, OptionError
from partialfusion.io.datafiles import load_batches, load_labelled


def refused(match: str, call: Callable[..., object], *args: object, error: type[Exception], **options: object) -> str:
    """The message of the error that a call must raise: one line."""
    with pytest.raises(error, match=match) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("form", ["npy", "pt", "dict", "safetensors"])
def test_batches(tmp_path: Path, form: str) -> None:
    data = torch.randn(65, 6, dtype=torch.float64)
    path = tmp_path / f"x.{'pt' if form == 'dict' else form}"
    if form == "npy":
        np.save(path, data.numpy())
    elif form == "safetensors":
        safetensors.torch.save_file({"images": data}, path)
    else:
        torch.save(data if form == "pt" else {"images": data, "source": "test"}, path)
    for like in (torch.ones(1, 6), None):
        batches = load_batches(path, 30, like=like)
        assert [len(b) for b in batches] == [30, 30, 5]
        assert torch.equal(torch.cat(batches), data.float())
    for size, sizes in ((1000, [65]), (64, [65]), (32, [32, 33]), (1, [1] * 65)):
        assert [len(b) for b in load_batches(path, size, like=torch.ones(1, 6))] == sizes


def test_bad_data(tmp_path: Path) -> None:
    def load(path: Path, size: int = 8) -> object:
        return load_batches(path, size, like=torch.ones(1, 6))

    np.save(path := tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused("not a .npy file of numbers", load, path, error=DataError)
    path.write_bytes(b"\x93NUMPY junk")
    refused("not a .npy file", load, path, error=DataError)
    np.save(path, np.array(["a", "b"]))
    refused("not a .npy file of numbers", load, path, error=DataError)
    np.save(path, np.zeros((0, 6)))
    refused("no samples", load, path, error=DataError)
    np.save(path, np.zeros((9, 6), dtype=np.uint8))
    refused("uint8 where the model takes torch.float32", load, path, error=DataError)
    torch.save({"x": torch.ones(2), "y": torch.ones(2)}, path := tmp_path / "x.pt")
    refused("2 tensors", load, path, error=DataError)
    refused("or give --input SHAPE for each input", load_batches, path, 8, like=None, error=DataError)
    torch.save(torch.ones(2, 6), path)
    for size in (0, -1, 2**63, 10**30):
        refused("at least one sample, and at most", load, path, size, error=OptionError)
    refused("no such file", load, tmp_path / "none.npy", error=CheckpointError)


@pytest.mark.parametrize("kind", [">f4", ">f8", "<f4", ">i4", "<i8"])
def test_bytes_in_either_order(tmp_path: Path, kind: str) -> None:
    """Machines of the other order wrote some files, and astronomers still do."""
    numbers = np.arange(12).reshape(4, 3).astype(kind)
    np.save(tmp_path / "x.npy", numbers)
    np.savez(tmp_path / "x.npz", x=numbers, labels=np.arange(4).astype(">i8"))
    like = torch.ones(1, 3, dtype=torch.float32 if "f" in kind else torch.int64)
    (batch,) = load_batches(tmp_path / "x.npy", 4, like=like)
    assert torch.equal(batch, torch.arange(12).reshape(4, 3).to(like.dtype))
    ((x, labels),) = load_labelled(tmp_path / "x.npz", 4, like=like)
    assert torch.equal(x, batch)
    assert labels.tolist() == [0, 1, 2, 3]


def test_several_inputs(tmp_path: Path) -> None:
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.arange(10).view(5, 2)
    like = (torch.ones(1, 3), torch.ones(1, 2, dtype=torch.int64))
    np.savez(tmp_path / "x.npz", z=x.numpy(), a=y.numpy())  # in the order they were given
    torch.save((x, y), tmp_path / "x.pt")
    safetensors.torch.save_file({"b": y, "a": x}, tmp_path / "x.safetensors")  # by name
    for name in ("x.npz", "x.pt", "x.safetensors"):
        batches = load_batches(tmp_path / name, 3, like=like)
        assert [(len(a), len(b)) for a, b in batches] == [(3, 3), (2, 2)]
        assert torch.equal(torch.cat([a for a, _ in batches]), x.float())
        assert torch.equal(torch.cat([b for _, b in batches]), y)
    np.savez(path := tmp_path / "x.npz", a=x[:4].numpy(), b=y.numpy())
    refused(r"\[4, 5\] samples", load_batches, path, 3, like=like, error=DataError)
    refused(r"2 tensors \(a, b\) where the model takes 1", load_batches, path, 3, like=like[:1], error=DataError)
    path.write_bytes(path.read_bytes()[:50])
    refused("not a .npz file", load_batches, path, 3, like=like, error=DataError)
