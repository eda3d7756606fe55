"""Tracing and matching say how far they have come."""

from __future__ import annotations

from itertools import pairwise

import pytest

import partialfusion as pf
from zoo import ZOO


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 0.4}, {"alpha": 0.4, "align": "greedy"}])
def test_matching_reports_what_is_done(options: dict[str, object]) -> None:
    models, told = [ZOO["vgg"].model(k) for k in range(3)], list[tuple[str, float]]()
    pf.fuse(models, ZOO["vgg"].inputs(), progress=lambda step, done: told.append((step, done)), **options)
    matching = [done for step, done in told if step == "matching channels"]
    assert len(matching) > 4
    assert all(a <= b for a, b in pairwise(matching))
    assert 0 < matching[0] < 0.5 < matching[-1] <= 1
    assert [step for step, _ in told][:4] == ["tracing", "checking", "reordering channels", "widening spaces"]
