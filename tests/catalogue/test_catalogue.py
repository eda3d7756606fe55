"""The quick part of the catalogue; `make catalogue` runs all of it."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch

import partialfusion as pf

from .conformance import check_numbers, trace_any
from .models import NAMES, QUICK, SMALLEST, build, images, randomise, representative

# Families in which a space keeps its width, and why.
STIFF = {"short shufflenet": "the code does not follow its width"}


def test_the_catalogue_is_whole() -> None:
    assert len(NAMES) == 80
    assert {representative(name) for name in NAMES} <= {*SMALLEST.values(), "vgg11_bn"}


@pytest.mark.parametrize("name", QUICK)
def test_invariants(name: str) -> None:
    row = check_numbers(name)
    assert row.traced, row.unknown
    assert not [c for c in row.checks.values() if c.startswith("FAILED")], row.checks
    if name in STIFF:
        assert STIFF[name] in row.why
    else:
        assert set(row.kinds) == {"elastic"}


@pytest.mark.parametrize(
    ("name", "spaces"), [("convnext_tiny", 12), ("resnext50_32x4d", 12), ("short swin", 12), ("short vit", 6)]
)
def test_other_families_trace(name: str, spaces: int) -> None:
    row = trace_any(name)
    assert row.traced, row.unknown
    assert "rigid" not in row.kinds
    assert row.kinds["elastic"] >= spaces


def test_a_fused_model_exports_to_onnx(tmp_path: Path) -> None:
    models, x = [randomise(build("squeezenet1_1"), s) for s in (0, 1)], images("squeezenet1_1")
    fused = pf.fuse(models, x, alpha=0.3, align="greedy").model.eval()
    file = tmp_path / "fused.onnx"
    torch.onnx.export(fused, (x,), str(file), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(file))
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert found == pytest.approx(fused(x).numpy(), abs=1e-4)


@pytest.mark.parametrize("name", ["short resnet", "short mobilenet_v2"])
def test_a_fused_model_trains_and_compiles(name: str) -> None:
    models, x = [randomise(build(name), s) for s in (0, 1)], images(name, 4)
    options = {"alpha": 0.3, "align": "greedy", "blueprint": pf.trace(models[-1], x, check=False)}
    fused = pf.fuse(models, x, **options).model
    with torch.no_grad():
        eager = fused(x)
        compiled = torch.compile(fused, backend="aot_eager")(x)
    assert torch.allclose(eager, compiled, atol=1e-4)
    fresh = pf.fuse(models[::-1], x, **options).model
    fresh.load_state_dict(fused.state_dict())
    with torch.no_grad():
        assert torch.equal(fresh(x), eager)
    fused.train()
    optimiser = torch.optim.SGD(fused.parameters(), 1e-3)
    before = fused(x).square().mean()
    before.backward()
    optimiser.step()
    assert torch.isfinite(fused(x)).all()
