"""Large parameters are read, compared and written a block of rows at a time, with the bits that they have as wholes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import partialfusion as pf
from partialfusion.core import blocks
from partialfusion.errors import OptionError, VerificationError
from partialfusion.features import TracedModel
from partialfusion.io.digest import state_digest
from partialfusion.streaming import write
from partialfusion.streaming.files import TensorFiles
from streaming.tiny import assert_same_bits, inputs, model, saved
from transformer.needs import need
from zoo import ZOO

ROWS = 48  # numbers of a block: three rows of an embedding


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    need("transformers")
    monkeypatch.setattr(blocks, "BLOCK", ROWS)


@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        ("gpt2", torch.float32, {"alpha": {"*mlp*": 0.5, "*": 0.25}, "mix": 0.3}),
        ("gpt2", torch.float16, {"alpha": 0.0, "method": "permutation", "convention": "mass"}),
        ("llama", torch.bfloat16, {"alpha": 0.5}),
        ("vit", torch.float32, {"alpha": 1.0}),
    ],
)
def test_the_result_is_that_in_memory_bit_for_bit(
    kind: str, dtype: torch.dtype, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = saved(tmp_path, kind, dtype=dtype)
    models = [model(kind, k, dtype) for k in range(2)]
    example = {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs(kind).items()}
    expected = pf.fuse(models, example, check=False, **options)
    written: list[int] = []
    usual = write.parameter

    def parameter(*given: Any) -> Tensor:
        found = usual(*given)
        written.append(found.numel())
        return found

    monkeypatch.setattr(write, "parameter", parameter)
    found = pf.fuse_files(directories, tmp_path / "out", example, check=False, **options)
    assert_same_bits(pf.from_pretrained(tmp_path / "out"), expected.model)
    sizes = [p.numel() for p in expected.model.parameters()]
    assert len(written) > 2 * len(sizes)
    widest = max(p[0].numel() for p in expected.model.parameters())
    assert max(written) <= max(ROWS, widest) < max(sizes)
    stored = pf.inspect(tmp_path / "out" / "model.partialfusion.safetensors")
    assert [s.sha256 for s in stored.sources] == [state_digest(m) for m in models]
    assert found.fusion.count == expected.count


def test_blocks_change_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They only sum in another order."""
    directories = saved(tmp_path, "gpt2")
    options: dict[str, Any] = {"alpha": 0.25, "check": False}
    pf.fuse_files(directories, tmp_path / "blocks", inputs("gpt2"), **options)
    monkeypatch.setattr(blocks, "BLOCK", 2**22)
    pf.fuse_files(directories, tmp_path / "whole", inputs("gpt2"), **options)
    assert_same_bits(pf.from_pretrained(tmp_path / "blocks"), pf.from_pretrained(tmp_path / "whole"))


def test_no_more_than_blocks_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a weight is larger than the products that are made of it."""
    asked: list[tuple[str, int]] = []
    usual = TensorFiles.read

    def read(self: TensorFiles, name: str, part: blocks.Part | None = None) -> Tensor:
        found = usual(self, name, part)
        asked.append((name, found.numel()))
        return found

    built = model("gpt2", 0, vocab_size=1300)
    for k in range(2):
        built.save_pretrained(tmp_path / str(k))
    monkeypatch.setattr(TensorFiles, "read", read)
    pf.fuse_files([tmp_path / "0", tmp_path / "1"], tmp_path / "out", inputs("gpt2"), alpha=0.5, check=False)
    embedding = {count for name, count in asked if "wte" in name}
    assert embedding
    assert max(embedding) <= ROWS


def test_numbers_that_are_not_finite_are_counted_over_all_blocks(tmp_path: Path) -> None:
    good, wrong = model("gpt2", 0), model.__wrapped__("gpt2", 7)
    with torch.no_grad():
        wrong.transformer.wpe.weight[[0, 7, 15], 2] = float("nan")
    for k, one in enumerate((good, wrong)):
        one.save_pretrained(tmp_path / str(k))
    with pytest.raises(OptionError, match=r"wpe\.weight \(16, 16\) holds 3 NaN"):
        pf.fuse_files([tmp_path / "0", tmp_path / "1"], tmp_path / "out", inputs("gpt2"))


def test_numbers_where_there_are_none_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        write,
        "parameter",
        lambda name, sources, plan, shape, part=None: torch.ones(shape if part is None else (len(part[1]), *shape[1:])),
    )
    with pytest.raises(VerificationError, match="holds numbers between channels of different models"):
        pf.fuse_files(saved(tmp_path, "gpt2"), tmp_path / "out", inputs("gpt2"), alpha=0.5, check=False)


@pytest.mark.parametrize("name", ["mlp", "vgg", "resnet", "grouped"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_of_what_is_mapped_is_that_part(name: str, axis: int) -> None:
    models, x = [ZOO[name].model(k) for k in range(2)], ZOO[name].inputs()
    result = pf.fuse(models, x, alpha=0.5, check=False)
    source = TracedModel.of(models[0], result.blueprint)
    kernels = {space: result.plan[space].pairs[0] for space in result.plan}
    shapes = {n: tuple(p.shape) for n, p in result.model.named_parameters()}
    for parameter in (n for n, shape in shapes.items() if len(shape) > axis):
        shape = shapes[parameter]
        whole = source.mapped(parameter, kernels, layout=result.layout, shape=shape, share=0.5)
        positions = torch.arange(0, shape[axis], 2)
        part = source.mapped(
            parameter, kernels, layout=result.layout, shape=shape, share=0.5, part=(axis, positions.numpy())
        )
        assert torch.equal(part, whole.index_select(axis, positions))
