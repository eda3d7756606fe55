"""torch.export takes half of the time of a trace, so how often it runs is part of what a fusion costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import partialfusion as pf
from partialfusion.blueprint import program
from streaming.tiny import inputs, saved
from transformer.needs import need
from zoo import ZOO


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each time that it ran."""
    seen: list[object] = []
    usual = program._export

    def counted(*given: Any, **options: Any) -> Any:
        seen.append(given[0])
        return usual(*given, **options)

    monkeypatch.setattr(program, "_export", counted)
    return seen


@pytest.mark.parametrize("name", ["mlp", "vgg-bn", "resnet"])
def test_the_check_takes_one_export_and_a_wider_result_another(name: str, exports: list[object]) -> None:
    models, x = [ZOO[name].model(k) for k in range(2)], ZOO[name].inputs()
    blueprint = pf.trace(models[1], x)
    assert len(exports) == 2  # the model, and a widened copy of it
    for alpha, count in ((0.0, 0), (0.4, 1)):
        exports.clear()
        pf.fuse(models, x, alpha=alpha, blueprint=blueprint)
        assert len(exports) == count
        pf.fuse(models, x, alpha=alpha)
        assert len(exports) == 2 * count + 2


@pytest.mark.parametrize(("alpha", "count"), [(0.0, 2), (0.4, 3)])
def test_files_take_as_many(alpha: float, count: int, tmp_path: Path, exports: list[object]) -> None:
    need("transformers")
    pf.fuse_files(saved(tmp_path, "gpt2"), tmp_path / "out", inputs("gpt2"), alpha=alpha)
    assert len(exports) == count
