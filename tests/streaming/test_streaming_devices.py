"""Files are fused with the heavy parts on another device: the same bits, and nothing large stays there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import partialfusion as pf
from partialfusion.cli import app
from partialfusion.core import cluster, compute
from partialfusion.core.blocks import Part
from partialfusion.errors import OptionError
from partialfusion.features import weights
from partialfusion.streaming.files import TensorFiles
from second_device import FIRST, SECOND, SecondDevice
from streaming.tiny import assert_same_bits, saved
from transformer.needs import need

pytestmark = pytest.mark.device


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    need("transformers")
    return saved(tmp_path, "gpt2")


@pytest.mark.parametrize("align", ["fixed-point", "greedy"])
def test_products_are_on_the_other_device(align: str, pair: list[Path], tmp_path: Path) -> None:
    """What is read is on the first device; what is moved for the products is on the second, and comes back."""
    pf.fuse_files(pair, tmp_path / "expected", alpha=0.5, align=align, check=False)
    count = 0
    usual = TensorFiles.read
    with SecondDevice() as mode, pytest.MonkeyPatch.context() as patch:

        def read(files: TensorFiles, name: str, part: Part | None = None) -> Tensor:
            mode._mark([found := usual(files, name, part)], FIRST)
            return found

        def to_second(tensor: Tensor) -> Tensor:
            nonlocal count
            count += 1
            assert mode.place(tensor) != SECOND
            mode._mark([copied := tensor.clone()], SECOND)
            return copied

        patch.setattr(TensorFiles, "read", read)
        patch.setattr(weights, "moved", to_second)
        pf.fuse_files(pair, tmp_path / "found", alpha=0.5, align=align, check=False)
    assert count > 0
    assert_same_bits(pf.from_pretrained(tmp_path / "found"), pf.from_pretrained(tmp_path / "expected"))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> set[torch.device | None]:
    """The devices that were chosen wherever a product was made."""
    seen = set()

    def noted(tensor: Tensor) -> Tensor:
        seen.add(compute._chosen.get())
        return tensor

    monkeypatch.setattr(weights, "moved", noted)
    return seen


class Worker:
    """A client whose worker knows nothing of the process that sends it tasks."""

    def submit(self, function: Callable[..., Any], *call: Any, pure: bool) -> Future[Any]:
        future: Future[Any] = Future()
        call = tuple(given.result() if isinstance(given, Future) else given for given in call)
        future.set_result(Context().run(function, *call))
        return future

    def cancel(self, futures: list[Future[Any]]) -> None:
        assert not futures


@pytest.mark.parametrize("place", ["call", "command", "worker"])
def test_the_device_is_that_which_was_chosen(
    place: str, pair: list[Path], tmp_path: Path, chosen: set[torch.device | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def connected(address: str) -> Iterator[Worker]:
        yield Worker()

    monkeypatch.setattr(cluster, "connected", connected)
    if place == "command":
        names = [f"hf:{path}" for path in pair]
        options = ["--out", str(tmp_path / "out"), "--device", "cpu", "--no-check"]
        done = CliRunner().invoke(app, ["fuse", *names, *options])
        assert done.exit_code == 0, done.output
    else:
        address = "tcp://host:8786" if place == "worker" else None
        pf.fuse_files(pair, tmp_path / "out", check=False, device="cpu", cluster=address)
    assert chosen == {torch.device("cpu")}


def test_a_device_that_is_not_there(pair: list[Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="device='nowhere' cannot be used here"):
        pf.fuse_files(pair, tmp_path / "out", device="nowhere")
    assert not list(tmp_path.glob("out*"))
