"""Folders for the tests of the runner; small data and a cache of its own for the tests of studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import tiny_data
from small_data import write_small_data


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def small_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small_study(monkeypatch: pytest.MonkeyPatch, small_data: Path, small_cache: Path) -> Iterator[None]:
    """The study package sees the small data, and keeps its checkpoints among those of the tests."""
    from partialfusion_study import samples, trained
    from partialfusion_study.cells.pairs import parent_logits

    caches = (samples.part, samples.sample, trained.trained, trained.blueprint, parent_logits)
    monkeypatch.setenv("PARTIALFUSION_DATA", str(small_data))
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(small_cache))
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Where cells leave their traces."""
    folder = tmp_path / "trace"
    folder.mkdir()
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Where the store is, once there is something in it."""
    return tmp_path / "results"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no data of the user."""
    return tiny_data.isolate(tmp_path, monkeypatch)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tiny_data.Web]:
    with tiny_data.serving(tmp_path / "web") as web:
        yield web


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tiny_data.Published]:
    return partial(tiny_data.publish, tmp_path, monkeypatch)
