"""Which layers are held as blocks: those where it is safe, and with mode="auto" those where it is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import partialfusion as pf
from partialfusion.blocks import (
    BlockConv2d,
    BlockLayer,
    BlockLinear,
    block_report,
    convert,
    dense_state,
    from_blocks,
    timing,
    to_blocks,
)
from partialfusion.blocks.whole import WholeTimes
from partialfusion.core.inputs import Inputs
from partialfusion.errors import DataError, OptionError
from partialfusion.surgery import apply
from zoo import STIFF, ZOO, error, identical, randomised

zoo = pytest.mark.parametrize("name", ZOO)


@cache
def fused(name: str) -> pf.Fusion:
    exhibit = {**ZOO, **STIFF}[name]
    return pf.fuse([exhibit.model(0), exhibit.model(1)], exhibit.inputs(), alpha=0.5, check=False)


def fuse_two(build: Callable[[], nn.Module], x: Tensor) -> pf.Fusion:
    return pf.fuse([randomised(build(), seed) for seed in (0, 1)], x, alpha=0.5, check=False)


def block_paths(model: nn.Module) -> list[str]:
    return [path for path, m in model.named_modules() if isinstance(m, BlockLayer)]


class Tied(nn.Module):
    """Two layers with one weight, and two with one bias."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(10, width), nn.Linear(width, 5)
        self.a, self.b, self.c, self.d = (nn.Linear(width, width) for _ in range(4))
        self.b.weight, self.d.bias = self.a.weight, self.c.bias

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.enter(x))
        for layer in (self.a, self.b, self.c, self.d):
            x = x + torch.relu(layer(x))
        return self.leave(x)


class Listed(nn.Module):
    """A layer that is also kept in a plain list and under a second name."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter, self.mid, self.leave = nn.Linear(10, width), nn.Linear(width, width), nn.Linear(width, 5)
        self.again = self.mid
        self.steps = [self.enter, self.mid]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = torch.relu(step(x))
        return self.leave(torch.relu(self.again(x)))


class Functional(nn.Module):
    """A weight that is used, never called; and one that is called only if it is what the code expects."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(10, width), nn.Linear(width, 5)
        self.used, self.asked, self.called = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(F.linear(torch.relu(self.enter(x)), self.used.weight, self.used.bias))
        if isinstance(self.asked, nn.Linear):
            x = torch.relu(self.asked(x))
        return self.leave(torch.relu(self.called(input=x)))


def middle(change: Callable[[nn.Module], object] = lambda layer: None) -> nn.Module:
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
    change(model[2])
    return model


def test_shared_weights_stay_dense_and_shared_biases_shared() -> None:
    x = torch.randn(4, 10)
    fusion = fuse_two(Tied, x)
    model = to_blocks(fusion, x)
    assert block_paths(model) == ["c", "d"]
    assert block_report(model)["a"].reason == block_report(model)["b"].reason == "its weight is shared"
    assert model.a.weight is model.b.weight
    assert model.c.bias is model.d.bias is not fusion.model.c.bias
    again = from_blocks(model)
    assert again.c.bias is again.d.bias is not model.c.bias
    assert error(model(x), fusion.model(x)) < 1e-5


def test_a_layer_is_replaced_wherever_it_is_kept() -> None:
    x = torch.randn(4, 10)
    fusion = fuse_two(Listed, x)
    model = to_blocks(fusion, x)
    assert isinstance(model.mid, BlockLinear)
    assert model.mid is model.again is model.steps[1]
    assert error(model(x), fusion.model(x)) < 1e-5
    assert list(dense_state(model)) == list(fusion.model.state_dict())
    again = from_blocks(model)
    assert again.mid is again.again is again.steps[1]
    assert identical(fusion.model.state_dict(), again)


def test_weights_that_code_uses_itself_stay_dense() -> None:
    x = torch.randn(4, 10)
    fusion = fuse_two(Functional, x)
    model = to_blocks(fusion, x)
    assert block_paths(model) == ["called"]
    report = block_report(model)
    assert report["used"].reason == "the model does not call it as a module"
    assert report["asked"].reason == "the model needs it dense"
    assert torch.equal(model.used.weight, fusion.model.used.weight)
    assert error(model(x), fusion.model(x)) < 1e-5


def hooked(layer: nn.Module) -> None:
    layer.register_forward_hook(lambda m, args, out: out)


def patched(layer: nn.Module) -> None:
    layer.forward = lambda x: F.linear(x, layer.weight, layer.bias)


OBSTACLES = {
    "hooks": (hooked, "it has hooks"),
    "attribute": (patched, "it has a custom attribute 'forward'"),
    "parametrised": (weight_norm, "its weight is computed"),
}


@pytest.mark.parametrize(("change", "reason"), OBSTACLES.values(), ids=OBSTACLES.keys())
def test_layers_that_are_more_than_layers_stay_dense(change: Callable[[nn.Module], object], reason: str) -> None:
    x = torch.randn(4, 10)
    fusion = fuse_two(middle, x)
    change(fusion.model[2])
    expected = fusion.model(x)
    model = to_blocks(fusion, x)
    assert not block_paths(model)
    assert block_report(model)["2"].reason == reason
    assert torch.equal(model(x), expected)


def test_plain_attributes_modes_and_gradient_flags_are_carried_over() -> None:
    x = torch.randn(4, 10)
    fusion = fuse_two(middle, x)
    fusion.model[2].mark = "kept"
    fusion.model[2].weight.requires_grad_(False)
    fusion.model.train()
    model = to_blocks(fusion, x)
    for layer in (model[2], from_blocks(model)[2]):
        assert layer.mark == "kept"
        assert layer.training
        assert layer.bias.requires_grad
        assert not any(p.requires_grad for n, p in layer.named_parameters() if "weight" in n)
    assert fusion.model.training


def test_weights_that_left_their_blocks_stay_dense() -> None:
    x = torch.randn(4, 10)
    fusion = fuse_two(middle, x)
    with torch.no_grad():
        fusion.model[2].weight[0, -1] = 1e-30
    model = to_blocks(fusion)
    assert not block_paths(model)
    assert block_report(model)["2"].reason == "it is not zero outside its blocks"


def test_channels_that_read_nothing_stay_dense() -> None:
    """A plan that drops one model's channels from the space that its later channels read."""
    sources, x = [randomised(middle(), seed) for seed in (0, 1)], torch.randn(4, 10)
    fusion = pf.fuse(sources, x, alpha=1.0, check=False)
    gone = np.array([], np.int64)
    first, second = fusion.plan["0"].pairs
    first = replace(first, target=gone, source=gone, write=gone.astype(float), read=gone.astype(float))
    plan = replace(fusion.plan, reductions={**fusion.plan, "0": replace(fusion.plan["0"], pairs=(first, second))})
    made = apply(sources, [fusion.blueprint] * 2, plan, Inputs.of(x))
    model = to_blocks(replace(fusion, model=made.model, plan=made.plan), x)
    assert block_report(model)["2"].reason == "some of its channels read nothing"
    assert torch.equal(model(x), made.model(x))


def test_attention_and_grouped_convolutions_keep_their_own_forms() -> None:
    fusion, x = fused("transformer"), STIFF["transformer"].inputs()
    model = to_blocks(fusion, x)
    assert torch.equal(model(x), fusion.model(x))
    assert block_report(to_blocks(fused("grouped")))["grouped"].reason == "its groups are blocks already"


def as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models with blocks be the fastest form as wholes, whatever the machine says."""

    def whole_times(forms: Iterable[str], *_: object) -> WholeTimes:
        return WholeTimes("the last model", {form: 1.0 + (form != "blocks") for form in forms})

    monkeypatch.setattr(convert, "whole_times", whole_times)


@zoo
def test_auto_keeps_the_form_it_measured_as_faster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_a_whole(monkeypatch)
    fusion, x = fused(name), ZOO[name].inputs()
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    model = to_blocks(fusion, x, mode="auto")
    assert error(model(x), fusion.model(x)) < 1e-5
    timed = {p: c for p, c in block_report(model).items() if c.dense_seconds is not None}
    assert list(timed) == block_paths(to_blocks(fusion))
    for path, choice in timed.items():
        assert choice.dense_seconds > 0
        assert choice.block_seconds > 0
        assert choice.blocks == (choice.block_seconds < choice.dense_seconds)
        assert isinstance(model.get_submodule(path), BlockLayer) == choice.blocks
    text = str(block_report(model))
    assert all(path in text for path in timed)
    assert identical(fusion.model.state_dict(), from_blocks(model))


def test_auto_decides_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    fusion, x = fused("resnet"), ZOO["resnet"].inputs()
    seen: list[int] = []

    def times(dense: Callable[[], Tensor], block: Callable[[], Tensor], device: torch.device) -> tuple[float, float]:
        assert error(block(), dense()) < 1e-5
        seen.append(dense().shape[1])
        return (2.0, 1.0) if seen[-1] > 12 else (1.0, 2.0)

    as_a_whole(monkeypatch)
    monkeypatch.setattr(timing, "paired_times", times)
    model = to_blocks(fusion, x, mode="auto")
    wide = [p for p, c in block_report(model).items() if c.dense_seconds is not None and p.startswith("layer2")]
    assert len(seen) == 9
    assert block_paths(model) == wide
    assert all(isinstance(model.get_submodule(p), BlockConv2d) for p in wide)


def test_a_layer_that_is_called_twice_is_timed_for_both_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    fusion, x = fused("shared"), ZOO["shared"].inputs()
    as_a_whole(monkeypatch)
    monkeypatch.setattr(timing, "paired_times", lambda *_: (2.0, 1.0))
    choice = block_report(to_blocks(fusion, x, mode="auto"))["again"]
    assert (choice.dense_seconds, choice.block_seconds) == (4.0, 2.0)


def test_options() -> None:
    fusion = fused("mlp")
    with pytest.raises(OptionError, match="mode='auto' times the layers on example inputs: pass example_inputs"):
        to_blocks(fusion, mode="auto")
    with pytest.raises(OptionError, match="mode='sparse' is not known; use 'blocks' or 'auto'"):
        to_blocks(fusion, mode="sparse")
    with pytest.raises(DataError, match=r"does not run on the example inputs of shapes \[\(2, 3\)\]"):
        to_blocks(fusion, torch.randn(2, 3))
    with pytest.raises(OptionError, match="was not made by to_blocks"):
        block_report(fusion.model)
