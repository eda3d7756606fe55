"""Refit through the public surface."""

from __future__ import annotations

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
    plain = pf.fuse(MODELS, X, alpha=alpha, method=method, data=DATA)
    before = snapshot(plain.model)
    at_once = pf.fuse(MODELS, X, alpha=alpha, method=method, data=DATA, refit=True)
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
