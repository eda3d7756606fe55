"""Example inputs that are left out: the first samples of the data serve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.examples import first_samples
from zoo import identical, mlp, randomised, snapshot


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(x)) * mask)


class Maybe(Two):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, torch.ones(1) if mask is None else mask)


X, MASK, LABELS = torch.randn(5, 4), torch.rand(5, 1), torch.arange(5)


@pytest.mark.parametrize(
    ("model", "batch", "shapes"),
    [
        (mlp(), X, [(2, 4)]),
        (mlp(), [X, LABELS], [(2, 4)]),
        (mlp(), (X, LABELS, ["a name"]), [(2, 4)]),
        (Two(), (X, MASK, LABELS), [(2, 4), (2, 1)]),
        (Two(), (X, torch.ones(1)), [(2, 4), (1,)]),
        (Two(), {"mask": MASK, "labels": LABELS, "x": X, "number": 3}, {"mask": (2, 1), "x": (2, 4)}),
        (Maybe(), ({"x": X}, LABELS), {"x": (2, 4)}),
        (Maybe(), X, [(2, 4)]),
    ],
)
def test_the_first_samples_without_the_labels(model: nn.Module, batch: Any, shapes: Any) -> None:
    found = first_samples(batch, model)
    if isinstance(shapes, dict):
        assert {name: tuple(v.shape) for name, v in found.kwargs.items()} == shapes
    else:
        assert [tuple(v.shape) for v in found.args] == shapes


@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (Maybe(), (X, LABELS), "a batch holds 2 and Maybe.forward takes 1 to 2, so which of a batch are inputs is"),
        (Two(), (X,), "a batch holds 1 and Two.forward takes 2, so"),
        (mlp(), 3, "a batch is a int, which shows no inputs"),
        (mlp(), {"y": X}, "holds no tensor that the model takes"),
        (mlp(), X[:0], "batch 0: input 0 of shape .0, 4. holds no samples"),
    ],
)
def test_where_the_data_does_not_show_the_inputs(model: nn.Module, batch: Any, message: str) -> None:
    with pytest.raises(pf.DataError, match=message):
        first_samples(batch, model)


def test_results_are_those_with_example_inputs() -> None:
    models, x = [randomised(mlp(), seed) for seed in (0, 1)], torch.randn(12, 10)
    data = [(x[:8], torch.zeros(8)), (x[8:], torch.zeros(4))]
    before = [snapshot(m) for m in models]
    expected = pf.fuse(models, x[:2], data=data)
    for batches in (data, iter(data)):
        assert identical(snapshot(pf.fuse(models, data=batches).model), expected.model)
    small = pf.prune(models[0], data=data, budget=0.5)
    assert identical(snapshot(small.model), pf.prune(models[0], x[:2], data=data, budget=0.5).model)
    scored = pf.frontier(models, data=data, evaluate=lambda model: float(model(x).mean()), alphas=(0.4,))
    assert scored.points[-1].dense == expected.count.dense
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))


def test_without_inputs_and_data_there_is_one_error() -> None:
    models = [mlp(), mlp()]
    message = "no inputs to run the model on: pass example_inputs, or data="
    with pytest.raises(pf.OptionError, match=message):
        pf.fuse(models)
    with pytest.raises(pf.OptionError, match=message):
        pf.prune(models[0])
    with pytest.raises(pf.OptionError, match=message):
        pf.frontier(models, evaluate=lambda model: 1.0)
    with pytest.raises(pf.DataError, match="holds no batch"):
        pf.fuse(models, data=[])
