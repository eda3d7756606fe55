"""Stored fusions opened again: with their sources they are what `fuse` and `prune` returned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.io.storage import resave
from partialfusion.io.stored import open_stored

X = torch.ones(2, 6)


def net(width: int = 8, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(6, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 3),
        ).eval()


def batches() -> list[Tensor]:
    return list(torch.randn(96, 6, generator=torch.Generator().manual_seed(1)).split(32))


def same(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x)


RESULTS = {
    "two": lambda: pf.fuse([net(seed=0), net(seed=1)], X, alpha=0.5),
    "unequal widths": lambda: pf.fuse([net(6, 0), net(9, 1)], X, alpha={"0": 0.5}),
    "three": lambda: pf.fuse([net(seed=s) for s in range(3)], X, alpha=0.25, mix=[0.2, 0.3, 0.5]),
    "clustered": lambda: pf.fuse([net(seed=0), net(seed=1)], X, method=pf.Cluster(solver="ward"), data=batches()),
    "pruned": lambda: pf.prune(net(seed=0), X, keep=0.5, method=pf.Cluster(solver="ward")),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_restored_is_what_was_saved(tmp_path: Path, kind: str) -> None:
    result = RESULTS[kind]()
    pf.save(result, path := tmp_path / "f.safetensors")
    found = pf.restore(path, result.sources, X)
    assert found.recipe == result.recipe
    assert found.count == result.count
    assert str(found.summary()) == str(result.summary())
    assert same(found.model, result.model)
    assert same(pf.refit(found, batches()).model, pf.refit(result, batches()).model)
    y = torch.randn(4, 6)
    torch.testing.assert_close(pf.to_blocks(found, y)(y), result.model(y))


def test_sources_must_be_those_of_the_file(tmp_path: Path) -> None:
    result = RESULTS["two"]()
    a, b = result.sources
    pf.save(result, path := tmp_path / "f.safetensors")
    for models, message in (
        ([a], "made of 2 model"),
        ([b, a], r"models\[0\] is not number 0 .* it is number 1"),
        ([a, net(seed=7)], r"models\[1\] is not number 1 .* its weights differ"),
    ):
        with pytest.raises(pf.MismatchError, match=message):
            pf.restore(path, models, X)
    with pytest.raises(pf.OptionError, match="list of the models"):
        pf.restore(path, a, X)  # type: ignore[arg-type]


def test_opened_without_sources(tmp_path: Path) -> None:
    result = RESULTS["two"]()
    pf.save(result, path := tmp_path / "f.safetensors")
    opened = open_stored(path, net(seed=5), X)
    assert {n: s.key for n, s in opened.layout.items()} == {n: s.key for n, s in result.layout.items()}
    blocks = pf.to_blocks(opened, X)  # type: ignore[arg-type]
    assert sum(p.numel() for p in blocks.parameters()) == result.count.effective


def test_resaved_with_other_numbers_and_precision(tmp_path: Path) -> None:
    result = RESULTS["two"]()
    pf.save(result, first := tmp_path / "f.safetensors")
    stored, again = pf.inspect(first), tmp_path / "g.safetensors"
    resave(stored, result.model, again)
    assert again.read_bytes() == first.read_bytes()
    resave(stored, result.model, again, dtype=torch.float16)
    pf.save(result, first, dtype=torch.float16)
    assert again.read_bytes() == first.read_bytes()
    with torch.no_grad():
        result.model[3].weight.add_(1.0)  # type: ignore[index, operator]
    resave(stored, result.model, again)  # what fills its zero blocks is stored whole
    assert same(pf.load(again, into=net(seed=5)), result.model)
    with pytest.raises(pf.CheckpointError, match=r"0.weight has shape \(8, 6\) in the model and \(12, 6\)"):
        resave(stored, net(), again)
