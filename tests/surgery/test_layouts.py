"""Layouts: the resized model is traced once for all results of its widths."""

from __future__ import annotations

import sys

import pytest
import torch

import partialfusion as pf
from zoo import ZOO


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The models that surgery traced."""
    module = sys.modules["partialfusion.surgery.apply"]
    found: list[object] = []
    original = module.trace_labels

    def counted(model, *rest):
        found.append(model)
        return original(model, *rest)

    monkeypatch.setattr(module, "trace_labels", counted)
    return found


def test_other_shares_and_matchings_need_no_second_trace(traces: list[object]) -> None:
    exhibit = ZOO["resnet"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    blueprint = pf.trace(models[1], x, check=False)
    first = pf.fuse(models, x, alpha=0.5, blueprint=blueprint)
    assert len(traces) == 1
    again = pf.fuse(models, x, alpha=0.5, mix=(0.3, 0.7), blueprint=blueprint)
    other = pf.fuse(models[::-1], x, alpha=0.5, align="greedy", blueprint=blueprint)
    assert len(traces) == 1
    fresh = pf.fuse(models, x, alpha=0.5, mix=(0.3, 0.7), blueprint=pf.trace(models[1], x, check=False))
    assert len(traces) == 2
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), fresh.model.parameters(), strict=True))
    for result in (first, again, other):
        assert torch.isfinite(result.model(x)).all()


def test_other_widths_and_other_inputs_are_traced(traces: list[object]) -> None:
    exhibit = ZOO["vgg"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    blueprint = pf.trace(models[1], x, check=False)
    for alpha in (1.0, 0.5):
        pf.fuse(models, x, alpha=alpha, blueprint=blueprint)
    assert len(traces) == 2
    ensemble = pf.fuse(models, x[:1], alpha=1.0, blueprint=blueprint)
    assert len(traces) == 3
    assert torch.allclose(ensemble.model(x), (models[0](x) + models[1](x)) / 2, atol=1e-5)
