"""What networks cost: operations are counted in every layer, or not at all."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.fusing.budget.sizes import Structure
from partialfusion.tradeoff.cost import operations

N, STEPS, INPUTS, WIDTH = 3, 4, 5, 6
GATES = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.last = kind(INPUTS, WIDTH, batch_first=True), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0])


@pytest.mark.parametrize("model", [nn.Linear(INPUTS, 2), Recurrent(nn.LSTM)])
def test_counting_is_quiet_and_leaves_no_trace(model: nn.Module) -> None:
    before = torch.backends.mkldnn.enabled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operations(model.eval(), Inputs.of(torch.randn(N, STEPS, INPUTS)))
    assert torch.backends.mkldnn.enabled == before


@pytest.mark.parametrize("kind", GATES)
def test_recurrent_layers_count(kind: type[nn.RNNBase]) -> None:
    model, x = Recurrent(kind).eval(), torch.randn(N, STEPS, INPUTS)
    wanted = 2 * N * STEPS * (GATES[kind] * WIDTH * (INPUTS + WIDTH) + WIDTH * 2)
    assert operations(model, Inputs.of(x)) == wanted
    assert Structure(model, pf.trace(model, x, check=False), Inputs.of(x), 1).sizes({}).flops == pytest.approx(wanted)


class Gate(nn.Module):
    """A linear layer and a bilinear one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(INPUTS, WIDTH), nn.Bilinear(WIDTH, INPUTS, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x), x)


def test_bilinear_layers_count() -> None:
    wanted = 2 * N * (INPUTS * WIDTH + 2 * WIDTH * INPUTS)
    assert operations(Gate().eval(), Inputs.of(torch.randn(N, INPUTS))) == wanted


def test_no_operations_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert operations(nn.ReLU(), Inputs.of(torch.randn(N, INPUTS))) is None
    assert "PyTorch counts no operations in ReLU" in caplog.text


class Impatient(nn.Module):
    """Refuses to be observed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, 2)

    def forward(self, x: Tensor) -> Tensor:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not while I am watched")
        return self.layer(x)


def test_what_cannot_be_counted_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert operations(Impatient().eval(), Inputs.of(torch.randn(N, INPUTS))) is None
    assert "the operations of Impatient cannot be counted (RuntimeError: not while I am watched)" in caplog.text
