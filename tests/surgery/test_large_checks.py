"""Large models are checked in single precision first, and in double where outputs differ."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import ZOO

checks = import_module("partialfusion.surgery.verify")  # the package has a function of this name


@pytest.fixture
def precisions(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Every model counts as large; the precisions of the checks that were run."""
    found: list[torch.dtype] = []
    check = checks._verified

    def recorded(*args: Any) -> Any:
        found.append(args[4])
        return check(*args)

    monkeypatch.setattr(checks, "LARGE", 0)
    monkeypatch.setattr(checks, "_verified", recorded)
    return found


@pytest.mark.parametrize("name", ["vgg-bn", "resnet", "mixer"])
def test_single_precision_finds_the_same(
    name: str, precisions: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = ZOO[name].model(0), ZOO[name].inputs()
    single = pf.trace(model, x)
    assert precisions == [torch.float32]
    monkeypatch.setattr(checks, "LARGE", 2**60)
    double = pf.trace(model, x)
    assert precisions == [torch.float32, torch.float64]
    assert [(s.name, s.kind, s.group) for s in single] == [(s.name, s.kind, s.group) for s in double]
    assert single.checked == double.checked


def test_what_differs_is_decided_in_double_precision(
    precisions: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here nothing but equal outputs will do in single precision, so rounding makes them differ."""
    monkeypatch.setitem(checks.TOLERANCE, torch.float32, 0.0)
    monkeypatch.setattr(checks, "NOISE_FACTOR", 0.0)
    blueprint = pf.trace(ZOO["resnet"].model(0), ZOO["resnet"].inputs())
    assert precisions == [torch.float32, torch.float64]
    assert "elastic" in {s.kind for s in blueprint}


def test_half_precision_is_checked_in_single(precisions: list[torch.dtype]) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(torch.bfloat16).eval()
    blueprint = pf.trace(model, torch.randn(2, 6, dtype=torch.bfloat16))
    assert precisions == [torch.float32]
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert "elastic" in {s.kind for s in blueprint}


def test_numbers_that_repeat_differ_between_rows_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PERIOD", 101)
    parts = checks._drawn(torch.randn, torch.empty(60, 50), torch.Generator().manual_seed(0))
    drawn = torch.cat([part for _, part in parts])
    assert drawn.flatten().unique().numel() == 101
    assert len(drawn.unique(dim=0)) == 60
    assert len(drawn.unique(dim=1).T) == 50


class Insists(nn.Module):
    """Code that computes in bfloat16, whatever the type of its weights and inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(torch.bfloat16)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner:
            x = layer(x.to(torch.bfloat16))
        return x


def test_a_check_in_half_precision_says_what_it_does_not_see() -> None:
    x = torch.randn(2, 6)
    assert "runs in bfloat16 only: differences below 10% are not seen" in pf.trace(Insists(), x).checked
    assert "only" not in pf.trace(Insists().inner, x.to(torch.bfloat16)).checked
