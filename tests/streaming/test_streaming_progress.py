"""Files are fused for minutes: what is done is told by bytes and by products, and never goes back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import partialfusion as pf
from partialfusion.core.progress import Amount, advance, hearing
from partialfusion.fusing.align import alignment
from partialfusion.io import digest
from partialfusion.streaming import fuse as streaming
from streaming.tiny import inputs, saved
from transformer.needs import need

Told = list[tuple[str, float]]


def told_by(pair: list[Path], out: Path, **options: Any) -> dict[str, list[float]]:
    """Label → the fractions that were told."""
    told: Told = []
    pf.fuse_files(pair, out, inputs("gpt2"), check=False, progress=lambda *step: told.append(step), **options)
    assert all(a <= b for (_, a), (_, b) in pairwise(told))
    assert told[-1][1] == 1.0
    return {label: [done for name, done in told if name == label] for label, _ in told}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    need("transformers")
    monkeypatch.setattr(digest, "CHUNK", 1000)  # bytes
    return saved(tmp_path, "gpt2")


@pytest.mark.parametrize(("align", "least"), [("greedy", 8), ("fixed-point", 40)])
def test_every_stage_moves_within(
    align: str, least: int, pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "SOLVING", 0.0)  # few channels take longer to assign than their products
    told = told_by(pair, tmp_path / "out", alpha=0.5, align=align)
    reading, matching, writing = (told[k] for k in ("reading the models", "matching channels", "writing shard 1 of 1"))
    size = sum(path.stat().st_size for folder in pair for path in folder.glob("*.safetensors"))
    assert len(set(reading)) > 0.9 * size / 1000
    assert len(set(matching)) > least  # four spaces, in which a product is told as soon as it is made
    written = tmp_path / "out" / "model.partialfusion-00001-of-00001.safetensors"
    assert len(set(writing)) > 0.9 * written.stat().st_size / 1000
    for fractions in (reading, writing):
        assert max(b - a for a, b in pairwise(fractions)) < 0.5 * (fractions[-1] - fractions[0])


def test_shards_that_are_kept_count(pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, written = streaming.write_shard, list[str]()

    def once(*given: Any) -> str:
        if written:
            raise KeyboardInterrupt
        written.append(given[-1])
        return usual(*given)

    with monkeypatch.context() as patch:
        patch.setattr(streaming, "write_shard", once)
        with pytest.raises(KeyboardInterrupt):
            told_by(pair, tmp_path / "out", shard_size=8000)
    again = told_by(pair, tmp_path / "out", shard_size=8000)
    shards = [label for label in again if label.startswith("writing")]
    assert len(shards) > 2
    assert shards[0].startswith("writing shard 1 of")  # its hash is compared
    assert "matching channels" not in again


def test_an_amount_never_goes_back() -> None:
    told: list[float] = []
    work = Amount(10.0, told.append)
    with hearing(work):
        advance(2.0)
        with hearing(None):
            advance(5.0)  # elsewhere
        advance(1.0)
    advance(1.0)
    work.end(5.0)  # three of which were heard
    work.end(1.0)
    work.end(9.0)
    assert told == [0.2, 0.3, 0.5, 0.6, 1.0]
