"""Refit through the public surface."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import partialfusion as pf
from zoo import ZOO, error, identical, snapshot

EXHIBIT = ZOO["mlp"]
X = EXHIBIT.inputs()
DATA = [torch.randn(300, 10, generator=torch.Generator().manual_seed(4))]
MODELS = [EXHIBIT.model(0), EXHIBIT.model(1)]


def gap(model: torch.nn.Module) -> float:
    """Mean squared distance of the outputs to the ensemble's."""
    with torch.no_grad():
        ensemble = sum(0.5 * m(DATA[0]) for m in MODELS)
        return float((model(DATA[0]) - ensemble).square().mean())


@pytest.mark.parametrize("method", ["average", "partial-ot", "cluster", "zip", "magnitude", "magnitude+ot"])
def test_refitting_at_once_or_afterwards_is_the_same_and_better(method: str) -> None:
    alpha = 0.0 if method == "average" else 0.3
    options = {"alpha": alpha, "method": method, "data": DATA, "blueprint": EXHIBIT.blueprint}
    plain = pf.fuse(MODELS, X, **options)
    before = snapshot(plain.model)
    at_once = pf.fuse(MODELS, X, refit=True, **options)
    afterwards = pf.refit(plain, DATA)
    assert identical(before, plain.model)
    assert identical(snapshot(at_once.model), afterwards.model)
    assert gap(at_once.model) < 0.5 * gap(plain.model)
    assert at_once.recipe == afterwards.recipe
    assert "refitted" in str(at_once.summary())
    assert "refitted" not in str(plain.summary())


def test_pruned_models_are_refitted_to_the_whole_one() -> None:
    model = MODELS[0]
    plain = pf.prune(model, X, keep=0.5, data=DATA)
    better = pf.refit(plain, [(DATA[0], torch.zeros(300))])
    with torch.no_grad():
        worse, now = (float((r.model(DATA[0]) - model(DATA[0])).square().mean()) for r in (plain, better))
    assert now < 0.5 * worse


def test_the_ensemble_is_not_touched() -> None:
    fused = pf.fuse(MODELS, X, alpha=1.0, data=DATA, refit=True)
    assert error(fused.model(X), sum(0.5 * m(X) for m in MODELS)) < 1e-6


@pytest.mark.parametrize("method", ["partial-ot", "cluster"])
def test_free_zeros_are_filled_and_nearer_to_the_ensemble(method: str) -> None:
    plain = pf.fuse(MODELS, X, alpha=0.4, method=method, data=DATA)
    kept, free = (pf.refit(plain, DATA, zeros=zeros) for zeros in ("kept", "free"))
    assert kept.count == plain.count
    assert kept.count.effective < kept.count.dense == free.count.dense
    assert free.count.effective > kept.count.effective
    assert gap(free.model) < gap(kept.model)
    assert "zero blocks kept" in str(kept.summary())
    assert "zero blocks filled" in str(free.summary())
    at_once = pf.fuse(MODELS, X, alpha=0.4, method=method, data=DATA, refit=True, zeros="kept")
    assert identical(snapshot(at_once.model), kept.model)
    assert identical(snapshot(pf.refit(plain, DATA).model), free.model)


def test_filled_results_go_on_as_dense_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files, blocks, freezing and counts all know that zero blocks were filled."""
    free = pf.fuse(MODELS, X, alpha=0.4, data=DATA, refit=True)
    pf.save(free, tmp_path / "free.safetensors")
    assert "stored whole" not in caplog.text
    loaded = pf.load(tmp_path / "free.safetensors", into=MODELS[1])
    assert identical(snapshot(free.model), loaded)
    restored = pf.restore(tmp_path / "free.safetensors", MODELS, X)
    assert restored.count == free.count
    assert restored.recipe == free.recipe
    blocks = pf.to_blocks(free, X)
    assert sum(p.numel() for p in blocks.parameters()) == free.count.dense
    assert "stay dense" in caplog.text
    assert error(blocks(X), free.model(X)) < 1e-6
    caplog.clear()
    for model, plan in ((free, None), (loaded, pf.inspect(tmp_path / "free.safetensors"))):
        with pf.freeze_zeros(model, plan) as frozen:
            assert "0 parameters" in repr(frozen)
        assert "filled" in caplog.text
        caplog.clear()
    with pytest.raises(pf.MismatchError, match="pass the result instead of its plan"):
        pf.freeze_zeros(free.model, free.plan)
    with pytest.raises(pf.OptionError, match="hold numbers already"):
        pf.refit(free, DATA, zeros="kept")


def test_rows_that_are_right_stay_and_fill_nothing() -> None:
    """Where the result is the ensemble, rounding must not fill the zero blocks."""
    fused = pf.fuse(MODELS, X, alpha=1.0)
    again = pf.refit(fused, DATA, zeros="free")
    before = snapshot(fused.model)
    weights = {name: p for name, p in again.model.named_parameters() if p.dim() > 1}
    assert all(torch.equal(before[name], p) for name, p in weights.items())
    assert again.count == fused.count
    assert error(again.model(X), fused.model(X)) < 1e-6


def test_a_budget_of_effective_parameters_keeps_the_zeros() -> None:
    budget = pf.Budget(params=1.4)
    result = pf.fuse(MODELS, X, budget=budget, data=DATA, refit=True)
    assert result.recipe.zeros == "kept"
    assert result.count.effective <= 1.4 * result.count.single
    assert pf.refit(pf.fuse(MODELS, X, budget=budget), DATA).recipe.zeros == "kept"
    with pytest.raises(pf.OptionError, match="exclude each other"):
        pf.fuse(MODELS, X, budget=budget, data=DATA, refit=True, zeros="free")
    with pytest.raises(pf.OptionError, match="zeros='some' is not known"):
        pf.fuse(MODELS, X, data=DATA, refit=True, zeros="some")  # type: ignore[arg-type]


def test_progress_is_told() -> None:
    told: list[tuple[str, float]] = []
    pf.refit(pf.fuse(MODELS, X), DATA, progress=lambda label, share: told.append((label, share)))
    assert told[-1] == ("refitting 7.weight", 1.0)
    assert len(told) == 5


def test_bad_options() -> None:
    with pytest.raises(pf.DataError, match="refit needs data"):
        pf.fuse(MODELS, X, refit=True)
    with pytest.raises(pf.DataError, match="no batch"):
        pf.refit(pf.fuse(MODELS, X), [])
    for ridge in (0.0, -1.0, float("nan"), "strong"):
        with pytest.raises(pf.OptionError, match="ridge"):
            pf.fuse(MODELS, X, data=DATA, refit=ridge)  # type: ignore[arg-type]
        with pytest.raises(pf.OptionError, match="ridge"):
            pf.refit(pf.fuse(MODELS, X), DATA, ridge=ridge)  # type: ignore[arg-type]
