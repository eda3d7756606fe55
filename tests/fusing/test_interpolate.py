"""Interpolation: some channels are kept, the others are read as linear combinations of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import STIFF, ZOO, Exhibit, error, permuted_twin

TOLERANCE = 1e-5
EVERYTHING = {**ZOO, **STIFF}
everything = pytest.mark.parametrize("exhibit", EVERYTHING.values(), ids=EVERYTHING.keys())


def batches(exhibit: Exhibit) -> list[Tensor]:
    return [torch.cat([exhibit.inputs(seed) for seed in range(12)])]


@everything
def test_with_all_channels_it_is_the_ensemble(exhibit: Exhibit) -> None:
    a, b, x = exhibit.model(0), exhibit.model(1), exhibit.inputs()
    fused = pf.fuse([a, b], x, method="interpolate", alpha=1.0, mix=(0.3, 0.7), data=batches(exhibit))
    assert error(fused.model(x), 0.3 * a(x) + 0.7 * b(x)) < TOLERANCE
    assert not any(r.dense_readers for r in fused.plan.values())


@everything
def test_with_its_twin_at_one_networks_size_a_model_is_itself(exhibit: Exhibit) -> None:
    model, x = exhibit.model(0), exhibit.inputs()
    for other in (model, permuted_twin(model, x, seed=3)):
        fused = pf.fuse(
            [other, model], x, method="interpolate", alpha=0.0, mix=(0.4, 0.6), data=batches(exhibit), norm="analytic"
        )
        assert error(fused.model(x), model(x)) < TOLERANCE
        assert {n: p.shape for n, p in fused.model.named_parameters()} == {
            n: p.shape for n, p in model.named_parameters()
        }


@everything
@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_one_is_that_model(exhibit: Exhibit, share: int) -> None:
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    mix = (1.0, 0.0) if share == 0 else (0.0, 1.0)
    fused = pf.fuse(models, x, method="interpolate", alpha=0.0, mix=mix, data=batches(exhibit), norm="analytic")
    assert error(fused.model(x), models[share](x)) < TOLERANCE
