"""Checkpoint directories and unfinished results of somebody else: refused in one line, or written anew."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import partialfusion as pf
from partialfusion.io.hf import CONFIG, INDEX, SINGLE
from partialfusion.io.pretrained import WEIGHTS, build_directory, load_directory
from partialfusion.streaming.files import TensorFiles
from partialfusion.streaming.skeleton import Skeleton
from partialfusion.streaming.unfinished import JOB, unfinished
from streaming.tiny import assert_same_bits, model, saved
from transformer.needs import need


@pytest.fixture(autouse=True)
def _transformers() -> None:
    need("transformers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path, "llama", (0,), shard="4KB")[0]


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/dev/zero", "..", "sub/a.safetensors", "a\0b", ""])
def test_an_index_that_leads_elsewhere(folder: Path, name: str) -> None:
    shutil.copy(next(folder.glob("*.safetensors")), folder.parent / "outside.safetensors")
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    changed(folder / INDEX, weight_map={**places, "lm_head.weight": name})
    with pytest.raises(pf.CheckpointError, match="no file in the same directory"):
        load_directory(model("llama", 0), folder)
    skeleton = Skeleton.of(lambda: model.__wrapped__("llama", 0))
    with pytest.raises(pf.CheckpointError, match="no file in the same directory"):
        TensorFiles.of(folder, skeleton)


def test_a_single_file_goes_before_an_index_as_in_transformers(folder: Path) -> None:
    other = model("llama", 9)
    other.save_pretrained(folder.parent / "other")
    shutil.copy(folder.parent / "other" / SINGLE, folder / SINGLE)
    skeleton = Skeleton.of(lambda: model.__wrapped__("llama", 0))
    found = TensorFiles.of(folder, skeleton)
    assert_same_bits(load_directory(model("llama", 0), folder), other)
    assert all(torch.equal(found.read(name), tensor) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_tied_weight_that_is_stored_twice(tmp_path: Path, change: float) -> None:
    """Transformers takes the two apart where they differ, so no result of one tied weight is right."""
    folder = saved(tmp_path, "gpt2", (0,))[0]
    stored = load_file(folder / SINGLE)
    twice = stored | {"lm_head.weight": stored["transformer.wte.weight"] + change}
    save_file(twice, folder / SINGLE, {"format": "pt"})
    skeleton = Skeleton.of(lambda: model.__wrapped__("gpt2", 0))
    if change:
        told = r"stores lm_head\.weight and transformer\.wte\.weight with different numbers.*tie_word_embeddings=false"
        with pytest.raises(pf.CheckpointError, match=told):
            TensorFiles.of(folder, skeleton)
    else:
        assert torch.equal(TensorFiles.of(folder, skeleton).read("lm_head.weight"), stored["transformer.wte.weight"])


def test_shards_may_be_links_to_files_and_to_nothing_else(folder: Path) -> None:
    """The cache of Hugging Face consists of such links."""
    shard = sorted(folder.glob("*.safetensors"))[1]
    kept = shutil.move(shard, folder.parent / "blob")
    shard.symlink_to(kept)
    load_directory(model("llama", 0), folder)
    shard.unlink()
    shard.symlink_to("/dev/zero")
    with pytest.raises(pf.CheckpointError, match="is a device"):
        load_directory(model("llama", 0), folder)


@pytest.mark.parametrize(
    "values", [{"num_hidden_layers": 2**31}, {"num_hidden_layers": 900}, {"vocab_size": 31 * 10**6}]
)
def test_a_config_far_beyond_its_weights(folder: Path, values: dict[str, int]) -> None:
    changed(folder / CONFIG, **values)
    with pytest.raises(pf.CheckpointError, match="cannot have|far smaller"):
        build_directory(folder, {})


def test_links_among_what_is_unfinished_are_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.safetensors"
    mine.write_text("mine")
    with unfinished(tmp_path / "out") as held:
        held.begin("a job")
        (held.folder / WEIGHTS).symlink_to(mine)
        os.mkfifo(held.folder / "pipe")
        (held.folder / "folder").symlink_to(tmp_path)
        held.begin("a job")
        assert os.listdir(held.folder) == [JOB]
    (tmp_path / "other.unfinished").symlink_to(tmp_path)
    with pytest.raises(pf.CheckpointError, match="is a link"), unfinished(tmp_path / "other"):
        pass
    assert mine.read_text() == "mine"


def test_a_damaged_note_begins_anew(tmp_path: Path) -> None:
    with unfinished(tmp_path / "out") as held:
        held.begin("a job")
        (held.folder / JOB).write_text("[" * 100_000)
        held.begin("a job")
        assert json.loads((held.folder / JOB).read_text()) == {"sha256": "a job"}
