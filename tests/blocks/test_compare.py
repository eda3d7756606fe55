"""The comparison of forms; the times themselves are not tested."""

from __future__ import annotations

import torch
from torch import nn

import partialfusion as pf
from partialfusion.blocks.compare import compare


def test_comparison() -> None:
    models = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in "ab"]
    x = torch.ones(2, 6)
    result = pf.fuse(models, x, alpha=0.5)
    found = compare(models, result, x, seconds=0.0)
    sizes = {s.form: s.parameters for s in found.speeds}
    single = result.count.single
    assert sizes["single"] == single
    assert sizes["ensemble"] == 2 * single
    assert sizes["dense"] == result.count.dense
    assert sizes["blocks"] == result.count.effective
    assert result.count.effective <= sizes["auto"] <= result.count.dense
    assert found.speeds[0].ratio == 1.0
    assert all(s.milliseconds > 0 for s in found.speeds)
    assert found.rounds == 9
    assert 0 <= found.block_layers <= found.layers == 1
    assert all(m.training for m in models)  # as they were
    for s in found.speeds:
        assert s.form in str(found)
