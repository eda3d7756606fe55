"""A folder with a module of factories and checkpoints."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from calls import LARGE, MODULE, NETS, SMALL

from partialfusion.core import progress
from partialfusion.io.checkpoints import save_state
from partialfusion.io.factories import build


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines about progress depend on how busy the machine is."""
    monkeypatch.setattr(progress, "EVERY", math.inf)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of factories and checkpoints a, b, c (small) and large."""
    (tmp_path / f"{MODULE}.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("abc"):
        save_state(build(SMALL, seed=seed), f"{name}.safetensors" if name != "b" else "b.pt")
    save_state(build(LARGE, seed=3), "large.safetensors")
    return tmp_path
