"""The observer: every use of a weight or norm, whoever calls it, with what it reads and writes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialfusion.core.inputs import Inputs
from partialfusion.core.observer import LayerCall, Observer, Stop
from zoo import identical, snapshot


class Log(Observer):
    """All calls, with copies of what was read and written."""

    def start(self) -> None:
        super().start()
        self.read: list[tuple[LayerCall, Tensor]] = []
        self.written: list[Tensor] = []
        self.others: list[str] = []

    def before(self, call: LayerCall) -> None:
        self.read.append((call, call.x.clone()))

    def after(self, call: LayerCall, result: Tensor) -> None:
        self.written.append(result.clone())

    def other(self, operation: str, names: list[str], values: object) -> None:
        self.others += names


def observed(model: nn.Module, *inputs: Tensor) -> Log:
    log = Log(model)
    with torch.no_grad():
        log.run(Inputs.of(inputs), 0)
    return log


class ManyWays(nn.Module):
    """Weights used by a module, by functions, transposed, from the left, and looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.dense = nn.Linear(4, 6)
        self.matrix = nn.Parameter(torch.randn(6, 3))
        self.left = nn.Parameter(torch.randn(2, 3))
        self.shift = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(self.table(x)) @ self.matrix
        return torch.addmm(self.shift, y, self.left.T) + F.linear(y, weight=self.left)


def test_all_uses_are_reported_with_what_they_read_and_write() -> None:
    torch.manual_seed(0)
    model, x = ManyWays(), torch.tensor([0, 3, 1])
    log = observed(model, x)
    calls = [call for call, _ in log.read]
    assert [c.operation for c in calls][:2] == ["embedding", "linear"]
    assert [c.name for c in calls] == ["table.weight", "dense.weight", "matrix", "left", "left"]
    assert [c.use for c in calls] == [0, 0, 0, 0, 1]
    assert calls[1].tensors == ("dense.weight", "dense.bias")
    assert calls[3].tensors == ("left", "shift")
    assert [log.is_transposed(c) for c in calls] == [False, False, False, True, False]
    y = model.dense(model.table(x)) @ model.matrix
    for k, expected in ((3, y), (4, y)):
        assert torch.allclose(log.read[k][1], expected)
    assert torch.allclose(log.written[4], y @ model.left.T)
    assert torch.allclose(log.written[3], y @ model.left.T + model.shift)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        return self.attention(x, y, y, need_weights=False)[0]


def test_self_attention_is_observed_from_inside() -> None:
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(3, 5, 8)
    log = observed(model, x)
    assert [c.name for c, _ in log.read] == ["attention.in_proj_weight", "attention.out_proj.weight"]
    assert all(c.rows is None for c, _ in log.read)
    assert torch.allclose(log.written[0].transpose(0, 1), F.linear(x, *_projection(model)), atol=1e-6)


def _projection(model: Attention) -> tuple[Tensor, Tensor]:
    return model.attention.in_proj_weight, model.attention.in_proj_bias


def test_slices_of_a_weight_say_which_rows_take_part() -> None:
    torch.manual_seed(0)
    model, x, y = Attention().eval(), torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    log = observed(model, x, y)
    assert [c.name for c, _ in log.read][:2] == ["attention.in_proj_weight"] * 2
    assert [c.rows for c, _ in log.read] == [(0, 8), (8, 24), None]
    weight, bias = _projection(model)
    assert torch.allclose(log.written[0].transpose(0, 1), F.linear(x, weight[:8], bias[:8]), atol=1e-6)
    assert torch.allclose(log.written[1].transpose(0, 1), F.linear(y, weight[8:], bias[8:]), atol=1e-6)
    assert "attention.in_proj_weight" in log.others  # the whole weight is used in another way too


def test_norms_are_reported_by_their_variance() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    log = observed(model, torch.randn(2, 3, 5, 5))
    assert [(c.kind, c.name) for c, _ in log.read] == [("weight", "0.weight"), ("norm", "1.running_var")]
    assert torch.equal(log.read[1][1], log.written[0])
    assert not [c for c, _ in observed(model.train(), torch.randn(2, 3, 5, 5)).read if c.kind == "norm"]


def test_an_observer_can_stop_the_model_and_observes_every_run_anew() -> None:
    class Stopping(Log):
        def after(self, call: LayerCall, result: Tensor) -> None:
            super().after(call, result)
            raise Stop

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    state = snapshot(model)
    log = Stopping(model)
    for _ in range(2):
        assert log.run(Inputs.of(torch.randn(2, 3)), 0) is None
        assert [(c.name, c.use) for c, _ in log.read] == [("0.weight", 0)]
    assert identical(state, model)


@pytest.mark.parametrize("mode", [False, True])
def test_outputs_are_what_they_are_without_an_observer(mode: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(mode)
    x = torch.randn(2, 3, 8)
    log = Log(layer)
    with torch.no_grad():
        assert torch.allclose(log.run(Inputs.of(x), 0), layer(x), atol=1e-6)
    assert {c.name for c, _ in log.read} == {
        "self_attn.in_proj_weight",
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    }
