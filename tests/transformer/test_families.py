"""The table of timm's families is whole, and its models run; `make catalogue` fuses them."""

from __future__ import annotations

import importlib

import pytest
import torch

from .families import MEMBERS, NOT_BUILT
from .needs import allow_torchvision, need


def test_every_family_of_timm_has_a_model() -> None:
    need("timm")
    allow_torchvision()
    assert {*MEMBERS, *NOT_BUILT} == set(importlib.import_module("timm").list_modules())
    assert not set(MEMBERS) & set(NOT_BUILT)


@pytest.mark.parametrize("family", ["focalnet", "resnet", "xcit"])
def test_a_model_of_a_family_runs(family: str) -> None:
    need("timm")
    entry = MEMBERS[family].entry(family)
    with torch.no_grad():
        found = entry.run(entry.build(0), entry.inputs())
    assert found.shape == (2, 5)
    assert found.dtype == torch.float64
