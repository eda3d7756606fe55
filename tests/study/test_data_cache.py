"""The cache of the data: damage is noticed, and those who use it at once do not disturb each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tiny_data import (
    Web,
    assert_digits,
    fresh,
    idx_files,
    packed,
    put,
)

from partialfusion.errors import DataError
from partialfusion_study.data import cache, load
from partialfusion_study.data.published import Published

pytestmark = pytest.mark.usefixtures("home")

Publish = Callable[..., Published]


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def other_label(raw: bytes) -> bytes:
    """A sound file in which one label is another."""
    tensors = safetensors.torch.load(raw)
    tensors["train_labels"] = (tensors["train_labels"] + 1) % 10
    return safetensors.torch.save(tensors)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "last pixel": lambda raw: flipped(raw, len(raw) - 1),
    "first label": lambda raw: flipped(raw, 8 + int.from_bytes(raw[:8], "little")),
    "header": lambda raw: flipped(raw, 8),
    "cut": lambda raw: raw[:-1],
    "empty": lambda raw: b"",
    "other labels": other_label,
    "other tensors": lambda raw: safetensors.torch.save({"a": torch.ones(2)}),
    "other shape": lambda raw: safetensors.torch.save({n: t.flatten() for n, t in safetensors.torch.load(raw).items()}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_cache_is_noticed_and_fetched_again(
    web: Web, publish: Publish, home: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(web.mirror("good", packed(idx_files())))
    load("mnist")
    file = home / "mnist.safetensors"
    sound = file.read_bytes()
    file.write_bytes(DAMAGE[kind](sound))
    assert_digits(fresh("mnist"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{file} is damaged" in caplog.text
    assert len(web.asked) == 8
    assert file.read_bytes() == sound


def test_a_damaged_cache_is_never_used_for_want_of_another(web: Web, publish: Publish, home: Path) -> None:
    publish(web.mirror("good", packed(idx_files())))
    load("mnist")
    publish()
    put(home, {"mnist.safetensors": DAMAGE["last pixel"]((home / "mnist.safetensors").read_bytes())})
    with pytest.raises(DataError, match="cache: .*is damaged: it does not have the checksum of MNIST"):
        fresh("mnist")


def test_a_cache_that_cannot_be_written_costs_only_the_next_fetch(
    web: Web, publish: Publish, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(web.mirror("good", packed(idx_files())))
    home.write_text("a file where the folder should be")
    assert_digits(load("mnist"))
    assert "cannot be cached and will be downloaded again" in caplog.text


def test_threads_that_ask_at_once_fetch_once(web: Web, publish: Publish) -> None:
    publish(web.mirror("good", packed(idx_files())))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(load, ["mnist"] * 4))
    assert all(data is found[0] for data in found)
    assert len(web.asked) == 4


CHILDREN = """
import json, os, sys
from partialfusion_study.data import images, load, published
sha256, address, files = json.loads(sys.argv[1])
mirrors, package = (published.Mirror(address, files),), published.Package("none", "0", "", {})
published.PUBLISHED["mnist"] = published.Published(7, 4, sha256, mirrors, package)
gate, opener = os.pipe()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        os.close(opener)
        os.read(gate, 1)
        os._exit(0 if images.checksum(load("mnist")) == sha256 else 1)
    children.append(child)
os.close(opener)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_processes_that_fetch_at_once_do_not_disturb_each_other(web: Web, publish: Publish, home: Path) -> None:
    mirror = web.mirror("good", packed(idx_files()))
    told = json.dumps([publish(mirror).sha256, mirror.address, dict(mirror.files)])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", CHILDREN, told], env=environment, check=True)
    assert [file.name for file in home.iterdir()] == ["mnist.safetensors"]
    assert_digits(load("mnist"))


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.home() == tmp_path / "cache"
    monkeypatch.delenv("PARTIALFUSION_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.home() == tmp_path / "xdg/partialfusion"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert cache.home() == tmp_path / "me/.cache/partialfusion"
