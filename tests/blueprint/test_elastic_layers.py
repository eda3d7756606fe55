"""Recurrent layers, group norms and grouped transposed convolutions are elastic, and the invariants hold for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import error, permuted_twin, randomised

TOLERANCE = 2e-5
MIX = (0.3, 0.7)
SEQUENCE, IMAGE = (2, 2, 5), (2, 3, 6, 6)


class Recurrent(nn.Module):
    """A recurrent layer between two linear ones; all that it returns is used."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 6, **options: Any) -> None:
        super().__init__()
        self.first = options.get("batch_first", False)
        self.a, self.rnn = nn.Linear(5, 7), kind(7, width, **options)
        both = 1 + options.get("bidirectional", False)
        self.b = nn.Linear(both * (options.get("proj_size", 0) or width), 4)
        self.c = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        out, last = self.rnn(x if self.first else x.transpose(0, 1))
        state = last[1] if isinstance(last, tuple) else last
        return self.b(out if self.first else out.transpose(0, 1)).mean(1) + self.c(state[-1])


class Stepped(nn.Module):
    """A cell in a loop, from a state that was learned."""

    def __init__(self, kind: type[nn.RNNCellBase], width: int = 6) -> None:
        super().__init__()
        self.cell, self.b = kind(5, width), nn.Linear(width, 4)
        self.start = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        state = self.start.expand(len(x), -1)
        cells = torch.zeros_like(state)
        for t in range(2):
            if isinstance(self.cell, nn.LSTMCell):
                state, cells = self.cell(x[:, t], (state, cells))
            else:
                state = self.cell(x[:, t], state)
        return self.b(state)


class Translator(nn.Module):
    """A decoder that starts where the encoder ends."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.encoder, self.decoder = (nn.LSTM(5, width, num_layers=2, batch_first=True) for _ in range(2))
        self.b = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.decoder(x.flip(1), self.encoder(x)[1])[0])


class Turned(nn.Module):
    """Transposed convolutions in groups, the first between batch norms; the last has a group for each channel."""

    def __init__(self, groups: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.a, self.n = nn.Conv2d(3, 3 * groups, 3, padding=1), nn.BatchNorm2d(3 * groups)
        self.t = nn.ConvTranspose2d(3 * groups, 2 * groups, 2, stride=2, groups=groups, bias=bias)
        self.m = nn.BatchNorm2d(2 * groups)
        self.d = nn.ConvTranspose2d(2 * groups, 2 * groups, 3, groups=2 * groups, bias=bias)
        self.b = nn.Linear(2 * groups, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.m(self.t(torch.relu(self.n(self.a(x))))))
        return self.b(torch.relu(self.d(x)).mean((2, 3)))


class GroupNormed(nn.Module):
    def __init__(self, size: int = 3, groups: int = 4, affine: bool = True) -> None:
        super().__init__()
        width = size * groups
        self.a, self.n = nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(groups, width, affine=affine)
        self.b, self.m = nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(groups, width, affine=affine)
        self.c = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.n(self.a(x)))
        return self.c((x + torch.relu(self.m(self.b(x)))).mean((2, 3)))


Network = tuple[Callable[..., nn.Module], tuple[int, ...]]
BOTH_WAYS = {"num_layers": 2, "bidirectional": True, "batch_first": True}
NETWORKS: dict[str, Network] = {
    **{k.__name__: (lambda w=6, k=k: Recurrent(k, w), SEQUENCE) for k in (nn.LSTM, nn.GRU, nn.RNN)},
    "GRU, both ways": (lambda w=6: Recurrent(nn.GRU, w, **BOTH_WAYS), SEQUENCE),
    "RNN of ReLUs": (lambda w=6: Recurrent(nn.RNN, w, num_layers=2, nonlinearity="relu", bias=False), SEQUENCE),
    "LSTM, projected": (lambda w=6: Recurrent(nn.LSTM, w, proj_size=3, num_layers=2), SEQUENCE),
    **{k.__name__: (lambda w=6, k=k: Stepped(k, w), SEQUENCE) for k in (nn.LSTMCell, nn.GRUCell)},
    "translator": (Translator, SEQUENCE),
    "transposed": (lambda w=4: Turned(w), IMAGE),
    "transposed, no bias": (lambda w=4: Turned(w, bias=False), IMAGE),
    "group norm": (lambda w=4: GroupNormed(3, w), IMAGE),
    "one group": (lambda w=4: GroupNormed(2 * w, 1), IMAGE),
    "a group a channel": (lambda w=4: GroupNormed(1, 2 * w), IMAGE),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_invariants(name: str) -> None:
    build, shape = NETWORKS[name]
    models, x = [randomised(build(), seed) for seed in (0, 1)], torch.randn(shape, generator=torch.manual_seed(0))
    blueprint = pf.trace(models[-1], x)
    assert all(s.kind == "elastic" or "output" in s.reasons for s in blueprint)
    assert blueprint.averaged == ()
    ensemble = pf.fuse(models, x, alpha=1.0, mix=MIX, blueprint=blueprint)
    assert error(ensemble.model(x), MIX[0] * models[0](x) + MIX[1] * models[1](x)) < TOLERANCE
    assert ensemble.shortfall == ""
    for alpha in (0.0, 0.5):
        itself = pf.fuse([models[0]] * 2, x, alpha=alpha, mix=MIX, blueprint=blueprint)
        assert error(itself.model(x), models[0](x)) < TOLERANCE
        ends = pf.fuse(models, x, alpha=alpha, mix=(1.0, 0.0), blueprint=blueprint)
        assert error(ends.model(x), models[0](x)) < TOLERANCE
    twin = permuted_twin(models[0], x, blueprint=blueprint)
    assert not torch.equal(next(twin.parameters()), next(models[0].parameters()))
    assert error(twin(x), models[0](x)) < TOLERANCE
    assert error(pf.fuse([twin, models[0]], x, alpha=0.0, mix=MIX, blueprint=blueprint).model(x), models[0](x)) < 2e-5


@pytest.mark.parametrize("name", ["LSTM, projected", "GRUCell", "transposed", "group norm"])
def test_other_widths(name: str) -> None:
    build, shape = NETWORKS[name]
    models, x = [randomised(build(8), 0), randomised(build(), 1)], torch.randn(shape)
    for order in (models, models[::-1]):
        ensemble = pf.fuse(order, x, alpha=1.0, mix=MIX)
        assert error(ensemble.model(x), MIX[0] * order[0](x) + MIX[1] * order[1](x)) < TOLERANCE
        small = pf.fuse(order, x, alpha=0.0).model
        assert [p.shape for p in small.parameters()] == [p.shape for p in order[-1].parameters()]


def test_layers_of_one_recurrent_module_change_their_widths_together() -> None:
    build, shape = NETWORKS["LSTM, projected"]
    models, x = [randomised(build(), seed) for seed in (0, 1)], torch.randn(shape)
    blueprint = pf.trace(models[-1], x)
    assert [len(group) for group in blueprint.groups] == [1, 2, 2]
    result = pf.fuse(models, x, alpha={"rnn": 0.5}, blueprint=blueprint)
    assert result.model.rnn.proj_size == 5
    assert result.model.rnn.hidden_size == 6
    budget = pf.fuse(models, x, budget=1.6, blueprint=blueprint)
    assert budget.count.ratio <= 1.6
    assert len({budget.plan[s].width for s in blueprint.groups[1]}) == 1
    half = pf.prune(models[0], x, keep=0.5, blueprint=blueprint).model
    assert half.rnn.hidden_size == 3
    assert torch.isfinite(half(x)).all()


def test_a_state_that_is_an_input_keeps_its_channels() -> None:
    class Started(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.b = nn.GRU(5, 6, batch_first=True), nn.Linear(6, 4)

        def forward(self, x: Tensor, state: Tensor) -> Tensor:
            return self.b(self.rnn(x, state)[0])

    space = pf.trace(Started().eval(), (torch.randn(SEQUENCE), torch.randn(1, 2, 6)))["rnn"]
    assert (space.kind, space.reasons) == ("rigid", ("gru starts from values that do not follow its channels",))


def test_what_cannot_be_refitted_is_named(caplog: pytest.LogCaptureFixture) -> None:
    build, shape = NETWORKS["LSTM"]
    models, x = [randomised(build(), seed) for seed in (0, 1)], torch.randn(shape)
    blueprint = pf.trace(models[-1], x)
    with caplog.at_level(logging.WARNING):
        result = pf.fuse(models, x, alpha=0.5, data=[x, torch.randn(shape)], refit=True, blueprint=blueprint)
    assert {"rnn.weight_ih_l0", "rnn.weight_hh_l0"} <= set(result.unrefitted)
    assert "not refitted" in caplog.text
    assert f"not refitted, since no layer that can be fitted uses them: {result.unrefitted[0]}" in str(result.summary())
    assert pf.refit(result, [x]).unrefitted == result.unrefitted
    assert pf.fuse(models, x, alpha=0.5, blueprint=blueprint).unrefitted == ()


def test_transposed_convolutions_are_refitted_with_their_norms() -> None:
    build, shape = NETWORKS["transposed"]
    models, x = [randomised(build(), seed) for seed in (0, 1)], torch.randn(shape)
    result = pf.fuse(models, x, alpha=0.5, data=[x], refit=True)
    assert result.unrefitted == ()
    assert torch.isfinite(result.model(x)).all()
