"""Operations that families of networks have of their own: alpha=1 is the mix of the outputs, or the reason is named."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.plain import plain
from zoo import error, randomised

MIX = (0.3, 0.7)
HEADS = 4


class ChannelAttention(nn.Module):
    """Attention between channels, as in cross-covariance attention."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.a, self.qkv, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 5)
        self.temperature = nn.Parameter(torch.ones(HEADS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 4, 1).unbind(0)
        attention = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)) * self.temperature
        x = x + self.b((attention.softmax(-1) @ v).permute(0, 3, 1, 2).reshape(batch, length, width))
        return self.c(x.mean(1))


class LinearAttention(nn.Module):
    """q (kᵀ v) with a column of ones, in double precision by force."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.qkv, self.b, self.c = nn.Linear(6, 48), nn.Linear(16, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = q.relu(), k.relu()
        with torch.autocast("cpu", enabled=False):
            summed = q @ (k.transpose(-1, -2) @ F.pad(v, (0, 1), value=1.0))
            mixed = summed[..., :-1] / (summed[..., -1:] + 1.0)
        return self.c(self.b(mixed.transpose(1, 2).flatten(2)).relu().mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.rnn = kind(8, 7, num_layers=2, bidirectional=True, batch_first=True)
        self.b = nn.Linear(14, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.rnn(self.a(x).relu())[0].mean(1))


class Blurred(nn.Module):
    """A filter for every channel in a buffer, and one for all of them."""

    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1), nn.Linear(6, 5)
        self.register_buffer("filters", torch.tensor([1.0, 2.0, 1.0]).outer(torch.ones(3)).expand(8, 1, 3, 3).clone())

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        x = F.conv2d(x, self.filters, groups=x.shape[1])
        x = F.conv2d(x, torch.ones(1, 1, 2, 2, dtype=x.dtype).expand(x.shape[1], 1, 2, 2), groups=x.shape[1])
        return self.c(self.b(x).relu().mean((2, 3)))


class Affine(nn.Module):
    """One number that scales all channels, and one that is added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.tensor([1.5])), nn.Parameter(torch.tensor([0.3]))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.bias


def with_affine() -> nn.Module:
    convolutions = nn.Conv2d(3, 8, 3), Affine(), nn.ReLU(), nn.Conv2d(8, 6, 3), Affine(), nn.ReLU()
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


class NormAct(nn.LayerNorm):
    """A norm with an activation function inside."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.drop, self.act = nn.Identity(), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class Parts(nn.Module):
    """Two widths, one of which only the modules around it have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = 4, 12
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, y = x.split([self.first, self.rest], -1)
        return torch.cat([self.mix(x), y], -1)


class TwoHeads(nn.Module):
    """The mean of the outputs of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.c(self.a(x).relu()), self.d(self.b(x).relu())]).mean(0)


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, standardised(self.weight), self.bias, groups=self.groups)


class Scaled(nn.Linear):
    """A weight of rows of length one, times a gain, which is a parameter of its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gain = nn.Parameter(torch.ones(outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.gain * F.normalize(self.weight, dim=1), self.bias)


class StandardisedInside(nn.Module):
    """No layer of PyTorch: its weight is computed by a module that does something else too."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.weight, self.groups = nn.Parameter(torch.randn(width, width // groups, 3, 3)), groups

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x.relu(), standardised(self.weight), groups=self.groups).relu()


def standardised(weight: Tensor) -> Tensor:
    return F.batch_norm(weight.reshape(1, len(weight), -1), None, None, training=True).reshape_as(weight)


def convolutions(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class SplitAttention(nn.Module):
    """A softmax between the groups of a convolution, which are then summed, as in ResNeSt."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.split = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, groups=2)
        self.gate, self.b = nn.Conv2d(6, 12, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.split(self.a(x).relu()).relu()
        x = x.reshape(len(x), 2, x.shape[1] // 2, *x.shape[2:])
        gate = self.gate(x.sum(1).mean((2, 3), keepdim=True))
        gate = gate.view(len(x), 1, 2, -1).transpose(1, 2).softmax(1)
        return self.b((x * gate.reshape(len(x), 2, -1, 1, 1)).sum(1).mean((2, 3)))


class Ghost(nn.Module):
    """Every channel twice, cut to a number that the channels it reads happen to have, too."""

    def __init__(self, read: int, half: int) -> None:
        super().__init__()
        self.width = 2 * half
        self.a, self.b = nn.Conv2d(read, half, 1), nn.Conv2d(half, half, 3, padding=1, groups=half)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        return torch.cat([x, self.b(x)], 1)[:, : self.width]


def ghosts() -> nn.Module:
    layers = Ghost(3, 6), Ghost(12, 12), Ghost(24, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(12, 5))


SEQUENCE, IMAGE = (2, 7, 6), (2, 3, 8, 8)
EXACT = {
    "attention between channels": (ChannelAttention, SEQUENCE),
    "linear attention": (LinearAttention, SEQUENCE),
    "lstm": (lambda: Recurrent(nn.LSTM), SEQUENCE),
    "gru": (lambda: Recurrent(nn.GRU), SEQUENCE),
    "rnn": (lambda: Recurrent(nn.RNN), SEQUENCE),
    "constant filters": (Blurred, IMAGE),
    "numbers for all channels": (with_affine, IMAGE),
    "norm with activation": (
        lambda: nn.Sequential(nn.Linear(6, 8), NormAct(8), nn.Linear(8, 8), NormAct(8), nn.Linear(8, 5)),
        SEQUENCE,
    ),
    "a width of another module": (
        lambda: nn.Sequential(nn.Linear(6, 16), Parts(), nn.ReLU(), nn.Linear(16, 5)),
        SEQUENCE,
    ),
    "mean of two outputs": (TwoHeads, SEQUENCE),
    "split attention": (SplitAttention, IMAGE),
    "a number that equals two widths": (ghosts, IMAGE),
    "standardised weights": (lambda: convolutions(nn.ReLU(), Standardised(8, 8, 1), nn.ReLU()), IMAGE),
    "standardised weights of groups": (lambda: convolutions(nn.ReLU(), Standardised(8, 8, 3, groups=4)), IMAGE),
    "weights of length one": (lambda: nn.Sequential(Scaled(6, 8), nn.ReLU(), Scaled(8, 7), nn.Linear(7, 5)), SEQUENCE),
    "weights of one channel standardised inside": (lambda: convolutions(StandardisedInside(8, 8)), IMAGE),
}


@pytest.mark.parametrize(("make", "shape"), EXACT.values(), ids=EXACT.keys())
def test_alpha_one_is_the_ensemble(make, shape) -> None:  # type: ignore[no-untyped-def]
    models = [randomised(make(), seed).double() for seed in (0, 1)]
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    blueprint = pf.trace(models[1], x)
    assert not blueprint.averaged
    assert not blueprint.unknown
    result = pf.fuse(models, x, alpha=1.0, mix=MIX, blueprint=blueprint).model
    assert error(result(x), sum(share * model(x) for share, model in zip(MIX, models, strict=True))) < 1e-10


@pytest.mark.parametrize(("make", "shape"), EXACT.values(), ids=EXACT.keys())
def test_a_model_fused_with_itself_is_itself(make, shape) -> None:  # type: ignore[no-untyped-def]
    model = randomised(make(), 0).double()
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = pf.fuse([model, model], x, alpha=0.0, mix=MIX).model
    shapes = {n: p.shape for n, p in plain(model).named_parameters()}
    assert {n: p.shape for n, p in result.named_parameters()} == shapes
    assert error(result(x), model(x)) < 1e-10


def test_weights_standardised_inside_other_modules_fix_channels_and_say_so() -> None:
    blueprint = pf.trace(randomised(convolutions(StandardisedInside(8, 1)), 0), torch.randn(IMAGE))
    assert blueprint["0"].kind == "rigid"
    assert "standardised weights" in blueprint["0"].reasons[0]
    assert "0.weight" in blueprint.averaged


def test_computed_weights_are_plain_in_the_result_and_the_sources_stay(caplog) -> None:  # type: ignore[no-untyped-def]
    models = [randomised(convolutions(nn.ReLU(), Standardised(8, 8, 3, padding=0)), seed) for seed in (0, 1)]
    before = [copy.deepcopy(m.state_dict()) for m in models]
    result = pf.fuse(models, torch.randn(IMAGE), alpha=0.5).model
    assert type(result[2]) is nn.Conv2d
    assert "plain ones in the result" in caplog.text
    for model, state in zip(models, before, strict=True):
        assert type(model[2]) is Standardised
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_weights_that_are_computed_become_plain(device: str) -> None:
    class Padded(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.pad(x, (0, 1, 0, 1)))

    class PaddedToo(Standardised):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.pad(x, (0, 1, 0, 1)))

    class OfInputs(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight * x.mean(), self.bias)

    with torch.device(device):
        for other in (Padded(3, 4, 3), PaddedToo(3, 4, 3), OfInputs(3, 4), nn.Conv2d(3, 4, 3)):
            assert plain(other) is other
        assert type(plain(Scaled(3, 4))) is nn.Linear
        assert dict(plain(Standardised(4, 8, 3, groups=2)).named_parameters()).keys() == {"weight", "bias"}


def test_rows_of_a_table_chosen_by_a_product_are_channels() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
            self.table = nn.Parameter(torch.randn(2, 9, 8))

        def forward(self, x: Tensor) -> Tensor:
            chosen = F.one_hot(torch.arange(7), 9).to(x.dtype) @ self.table
            return self.b((self.a(x) + chosen.sum(0)).relu().mean(1))

    blueprint = pf.trace(Table(), torch.randn(SEQUENCE))
    assert [s.kind for s in blueprint] == ["elastic", "rigid"]
    assert ("table", 2) in {(b.parameter, b.axis) for b in blueprint["a"].bindings}


def test_a_position_table_may_be_resized() -> None:
    class Resized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 1), nn.Linear(8, 5)
            self.table = nn.Parameter(torch.randn(1, 8, 4, 4))

        def forward(self, x: Tensor) -> Tensor:
            table = F.interpolate(self.table, x.shape[-2:], mode="bicubic", antialias=True)
            return self.b((self.a(x) + table).relu().mean((2, 3)))

    assert [s.kind for s in pf.trace(Resized(), torch.randn(IMAGE))] == ["elastic", "rigid"]


def test_what_code_keeps_of_earlier_runs_is_forgotten() -> None:
    class Kept(nn.Module):
        """Adds a row of a table, which it keeps in evaluation mode."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
            self.table, self.kept = nn.Parameter(torch.randn(3, 8)), dict[str, Tensor]()

        def train(self, mode: bool = True) -> Kept:
            if mode:
                self.kept.clear()
            return super().train(mode)

        def forward(self, x: Tensor) -> Tensor:
            if "row" not in self.kept:
                self.kept["row"] = self.table[1]
            return self.b((self.a(x) + self.kept["row"]).relu())

    x = torch.randn(2, 6)
    models = [randomised(Kept(), seed) for seed in (0, 1)]
    with torch.no_grad():
        outputs = [model(x) for model in models]
        blueprint = pf.trace(models[1], x)
        assert [s.kind for s in blueprint] == ["elastic", "rigid"]
        result = pf.fuse(models, x, alpha=1.0, mix=MIX, blueprint=blueprint).model
        assert error(result(x), MIX[0] * outputs[0] + MIX[1] * outputs[1]) < 1e-5


def test_a_buffer_that_code_puts_in_the_place_of_another_stays_in_the_source() -> None:
    class Lazy(nn.Module):
        """Makes a table of positions when it runs."""

        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
            self.register_buffer("table", torch.zeros(1), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if len(self.table) != x.shape[1]:
                self.table = torch.arange(x.shape[1], dtype=x.dtype)
            return self.b((self.a(x) * self.table[:, None]).relu().sum(1))

    models, x = [Lazy().eval() for _ in range(2)], torch.randn(SEQUENCE)
    before = [model.table for model in models]
    result = pf.fuse(models, x, alpha=1.0, mix=MIX, blueprint=pf.trace(models[1], x)).model
    assert all(model.table is table for model, table in zip(models, before, strict=True))
    assert error(result(x), sum(share * model(x) for share, model in zip(MIX, models, strict=True))) < 1e-5
