"""Buffers that no file holds: a trace without numbers follows those that choose channels."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch

import partialfusion as pf
from partialfusion.core.meta import remembered, remembering
from partialfusion.streaming.skeleton import Skeleton
from streaming.tiny import assert_same_bits, inputs, model, saved
from transformer.needs import need


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_swin_is_fused_bit_for_bit(alpha: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    need("transformers")
    expected = pf.fuse([model("swin", k) for k in range(2)], inputs("swin"), alpha=alpha, check=False)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = pf.fuse_files(saved(tmp_path, "swin"), tmp_path / "out", alpha=alpha)
    assert not found.fusion.shortfall
    assert "only averaged" not in caplog.text
    assert not found.fusion.blueprint.unknown
    assert_same_bits(pf.from_pretrained(tmp_path / "out"), expected.model)


def test_only_whole_numbers_that_no_file_holds_are_remembered() -> None:
    class Buffers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("index", torch.tensor([2, 0, 1]), persistent=False)
            self.register_buffer("stored", torch.tensor([2, 0, 1]))
            self.register_buffer("numbers", torch.rand(3), persistent=False)

    found = dict(Skeleton.of(Buffers).model.named_buffers())
    assert all(buffer.is_meta for buffer in found.values())
    assert remembered(found["index"]).tolist() == [2, 0, 1]
    assert remembered(found["stored"]) is found["stored"]
    assert remembered(found["numbers"]) is found["numbers"]


def test_copies_remember_and_what_has_numbers_needs_no_memory() -> None:
    index = torch.tensor([3, 1])
    assert torch.equal(remembered(copy.deepcopy(remembering(index))), index)
    assert remembered(index) is index
