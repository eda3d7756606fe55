"""The result is an ordinary module of the user's class."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.surgery.elastic import bisect_failures
from zoo import ZOO, Exhibit, error, mlp, randomised

zoo = pytest.mark.parametrize("exhibit", ZOO.values(), ids=ZOO.keys())


@zoo
def test_it_trains_saves_and_repeats_its_widths(exhibit: Exhibit) -> None:
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    fused = pf.fuse(models, x, alpha=0.5).model
    assert type(fused) is type(models[1])
    assert list(fused.state_dict()) == list(models[1].state_dict())
    for module in fused.modules():
        if isinstance(module, nn.Linear):
            assert tuple(module.weight.shape) == (module.out_features, module.in_features)
        elif isinstance(module, nn.Conv2d):
            assert module.weight.shape[:2] == (module.out_channels, module.in_channels // module.groups)
        elif isinstance(module, nn.BatchNorm2d):
            assert module.weight.shape[0] == module.num_features
    before = fused(x)
    file = io.BytesIO()
    torch.save(fused.state_dict(), file)
    file.seek(0)
    again = pf.fuse([models[1], models[0]], x, alpha=0.5).model
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(again(x), before)
    fused.train()
    optimiser = torch.optim.SGD(fused.parameters(), 0.1)
    fused(x).square().mean().backward()
    assert all(p.grad is not None for p in fused.parameters())
    optimiser.step()
    fused.eval()
    assert not torch.equal(fused(x), before)


def test_mode_and_gradient_flags_follow_the_last_model() -> None:
    models, x = [randomised(mlp(), s) for s in (0, 1)], torch.randn(2, 10)
    models[1].train()
    models[1][0].weight.requires_grad_(False)
    fused = pf.fuse(models, x).model
    assert fused.training
    assert [p.requires_grad for p in fused.parameters()] == [p.requires_grad for p in models[1].parameters()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    models, x = [randomised(mlp(), s).to(dtype) for s in (0, 1)], torch.randn(2, 10, dtype=dtype)
    fused = pf.fuse(models, x, alpha=1.0).model
    assert {p.dtype for p in fused.parameters()} == {dtype}
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    assert error(fused(x), (models[0](x) + models[1](x)) / 2) < tolerance


class TwoInputs(nn.Module):
    """Several inputs, several outputs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, width), nn.Linear(3, width)
        self.out, self.side = nn.Linear(width, 2), nn.Linear(width, 3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = torch.relu(self.a(x)) + torch.tanh(self.b(y))
        return {"out": self.out(h), "side": self.side(h)}


def test_several_inputs_and_outputs() -> None:
    models = [randomised(TwoInputs(), s) for s in (0, 1)]
    inputs = torch.randn(5, 4), torch.randn(5, 3)
    fused = pf.fuse(models, inputs, alpha=1.0)
    for key in ("out", "side"):
        expected = (models[0](*inputs)[key] + models[1](*inputs)[key]) / 2
        assert error(fused.model(*inputs)[key], expected) < 1e-5
    data = [(torch.randn(6, 4), torch.randn(6, 3), torch.zeros(6)) for _ in range(2)]
    assert pf.fuse(models, inputs, alpha=0.4, data=data).plan["a"].width == 11


def test_meta_models_are_planned_and_shaped() -> None:
    with torch.device("meta"):
        models, x = [ZOO["resnet"].build(8) for _ in range(2)], torch.randn(2, 3, 8, 8)
    fused = pf.fuse(models, x, alpha=1.0)
    assert fused.model.conv1.weight.is_meta
    assert tuple(fused.model.conv1.weight.shape) == (16, 3, 3, 3)


def test_the_summary_adds_up() -> None:
    exhibit = ZOO["resnet"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    fused = pf.fuse(models, x, alpha=0.4)
    summary = fused.summary()
    assert [s.name for s in summary.spaces] == [s.name for s in fused.blueprint]
    for s in summary.spaces:
        assert s.after == s.fused + sum(s.isolated)
        assert s.cost >= 0
    text = str(summary)
    for part in (f"{fused.count.effective:,} effective", f"{fused.count.ratio:.2f}× one model", "sweeps"):
        assert part in text


def test_culprits_are_found_by_bisection() -> None:
    spaces = [str(k) for k in range(20)]
    asked: list[int] = []

    def passes(some: list[str]) -> bool:
        asked.append(len(some))
        return not {"3", "17"} & set(some)

    assert bisect_failures(spaces, passes) == ["3", "17"]
    assert len(asked) < 30
    assert bisect_failures(spaces, lambda some: not {"3", "17"} <= set(some)) == spaces
