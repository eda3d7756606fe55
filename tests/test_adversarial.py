"""Networks built to mislead the tracing: labels alone must not be wrong, and nothing may be disturbed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.core.plain import plain
from partialfusion.surgery import apply
from partialfusion.surgery.verify import reordered
from zoo import error, identical, permuted_twin, randomised, snapshot

VECTOR, IMAGE = (6,), (3, 8, 8)


class Net(nn.Module):
    """Modules, parameters and buffers by name, and what to do with them."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor], **parts: object) -> None:
        super().__init__()
        self.compute = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(*shape))


def halves(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.c(torch.cat([torch.relu(h[:, :4]), h[:, 4:]], 1))


def zeroed(m: Net, x: Tensor) -> Tensor:
    h = torch.tanh(m.a(x))
    h[:, :4] = 0.0
    return m.c(h)


def overwritten(m: Net, x: Tensor) -> Tensor:
    z = torch.zeros(len(x), 8)
    z[:, :5] = m.a(x)
    return m.c(torch.relu(z + m.b(x)))


def spatial_attention(m: Net, x: Tensor) -> Tensor:
    h = torch.relu(m.a(x))
    gate = torch.sigmoid(m.b(torch.stack([h.mean(1), h.amax(1)], 1)))
    return m.c((h * gate).mean((2, 3)))


def shifting(m: Net, x: Tensor) -> Tensor:
    m.seen.add_(1)
    x.mul_(2.0)
    return m.c(torch.relu(m.a(x)))


L, C = nn.Linear, nn.Conv2d
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "halves treated differently": (lambda: Net(halves, a=L(6, 8), c=L(8, 4)), VECTOR),
    "half zeroed in place": (lambda: Net(zeroed, a=L(6, 8), c=L(8, 4)), VECTOR),
    "written into zeros": (lambda: Net(overwritten, a=L(6, 5), b=L(6, 8), c=L(8, 4)), VECTOR),
    "norm over channels and input": (
        lambda: Net(lambda m, x: m.c(m.n(torch.cat([m.a(x), x], 1))), a=L(6, 8), n=nn.BatchNorm1d(14), c=L(14, 4)),
        VECTOR,
    ),
    "scale over channels and input": (
        lambda: Net(lambda m, x: m.c(m.s * torch.cat([m.a(x), x], 1)), a=L(6, 8), s=parameter(14), c=L(14, 4)),
        VECTOR,
    ),
    "norm over padded channels": (
        lambda: Net(
            lambda m, x: m.c(torch.relu(m.n(F.pad(m.a(x), (0, 0, 0, 0, 0, 4)))).mean((2, 3))),
            a=C(3, 8, 3),
            n=nn.BatchNorm2d(12),
            c=L(12, 4),
        ),
        IMAGE,
    ),
    "spatial attention": (lambda: Net(spatial_attention, a=C(3, 8, 3), b=C(2, 1, 1), c=L(8, 4)), IMAGE),
    "scalar gate": (
        lambda: Net(lambda m, x: m.c(torch.sigmoid(m.g) * torch.relu(m.a(x))), a=L(6, 8), g=parameter(1), c=L(8, 4)),
        VECTOR,
    ),
    "clamped by a parameter": (
        lambda: Net(lambda m, x: m.c(torch.clamp(m.a(x), max=m.g)), a=L(6, 8), g=parameter(8), c=L(8, 4)),
        VECTOR,
    ),
    "normalised": (lambda: Net(lambda m, x: m.c(F.normalize(m.a(x), dim=1)), a=L(6, 8), c=L(8, 4)), VECTOR),
    "outer product": (
        lambda: Net(
            lambda m, x: m.c((m.a(x)[:, :, None] * m.b(x)[:, None]).flatten(1)), a=L(6, 3), b=L(6, 5), c=L(15, 4)
        ),
        VECTOR,
    ),
    "weight used in two ways": (
        lambda: Net(lambda m, x: m.c(m.a(x) + m.a.weight.mean(1)), a=L(6, 8), c=L(8, 4)),
        VECTOR,
    ),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(L(6, 8)), nn.ReLU(), L(8, 4)),
        VECTOR,
    ),
    "masked weights": (
        lambda: nn.Sequential(nn.utils.prune.random_unstructured(L(6, 8), "weight", 0.3), nn.ReLU(), L(8, 4)),
        VECTOR,
    ),
    "functional weights": (
        lambda: Net(lambda m, x: torch.relu(x @ m.v.t()) @ m.w, v=parameter(8, 6), w=parameter(8, 4)),
        VECTOR,
    ),
    "recurrent": (
        lambda: Net(lambda m, x: m.c(m.r(x[:, None].expand(-1, 3, -1))[0][:, -1]), r=nn.LSTM(6, 8), c=L(8, 4)),
        VECTOR,
    ),
    "random drop path": (
        lambda: Net(
            lambda m, x: m.c(m.a(x) * F.dropout(torch.ones(len(x), 1), training=m.training)), a=L(6, 8), c=L(8, 4)
        ),
        VECTOR,
    ),
    "buffer per channel": (
        lambda: Net(lambda m, x: m.c(torch.relu(m.a(x)) * m.k), a=L(6, 8), k=torch.arange(8.0), c=L(8, 4)),
        VECTOR,
    ),
    "channels shuffled": (
        lambda: Net(
            lambda m, x: m.c(torch.relu(m.a(x)).view(len(x), 2, 4).transpose(1, 2).flatten(1)), a=L(6, 8), c=L(8, 4)
        ),
        VECTOR,
    ),
    "pixel shuffle": (
        lambda: Net(lambda m, x: m.c(F.pixel_shuffle(torch.relu(m.a(x)), 2).mean((2, 3))), a=C(3, 8, 3), c=L(2, 4)),
        IMAGE,
    ),
}
nets = pytest.mark.parametrize(("build", "shape"), NETS.values(), ids=NETS.keys())


def inputs(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(seed))


@nets
def test_labels_alone_are_not_wrong(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, x = plain(randomised(build(), 0)), inputs(shape)
    blueprint = pf.trace(model, x, check=False)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        plan = reordered(blueprint, [s.name for s in blueprint if s.kind != "rigid"], rng)
        moved = apply([model], [blueprint], plan, Inputs.of(x)).model.eval()
        assert error(moved(x.clone()), model(x.clone())) < 1e-5


@cache
def traced(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, pf.Blueprint]:
    """A network and its blueprint, for all tests that fuse it with itself."""
    model = randomised(build(), 0)
    return model, pf.trace(model, inputs(shape))


@nets
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_fused_with_itself(build: Callable[[], nn.Module], shape: tuple[int, ...], alpha: float) -> None:
    (model, blueprint), x = traced(build, shape), inputs(shape)
    fused = pf.fuse([model, model], x, alpha=alpha, mix=(0.3, 0.7), blueprint=blueprint, allow_shortfall=True)
    assert error(fused.model(x.clone()), model(x.clone())) < 1e-5


@nets
def test_fused_with_a_twin(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    (model, blueprint), x = traced(build, shape), inputs(shape)
    expected, twin = model(x.clone()), permuted_twin(model, x, 1, blueprint=blueprint)
    options = {"alpha": 0.0, "blueprint": blueprint, "allow_shortfall": True}
    assert error(pf.fuse([twin, model], x, **options).model(x.clone()), expected) < 1e-5
    data = [inputs(shape, seed) for seed in range(1, 4)]
    fused = pf.fuse([twin, model], x, data=data, norm="analytic", **options)
    assert error(fused.model(x.clone()), expected) < 1e-5


@nets
def test_alpha_one_is_the_ensemble_or_an_error_that_says_why_not(
    build: Callable[[], nn.Module], shape: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    a, b, x = randomised(build(), 0), randomised(build(), 1), inputs(shape)
    fused = pf.fuse([a, b], x, alpha=1.0, allow_shortfall=True)
    exact = error(fused.model(x.clone()), (a(x.clone()) + b(x.clone())) / 2) < 1e-4
    assert exact == (fused.shortfall == "")
    if exact:
        return
    assert fused.blueprint.averaged or fused.blueprint.nonlinear_after
    assert fused.shortfall in caplog.text
    assert fused.shortfall in str(fused.summary())
    with pytest.raises(pf.ShortfallError, match="not the ensemble|would be the plain average") as caught:
        pf.fuse([a, b], x, alpha=1.0, blueprint=fused.blueprint)
    assert "allow_shortfall=True" in str(caught.value)


class TrainingNorm(nn.Module):
    """Its batch norm takes the statistics of every batch, and updates its own, in any mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.c = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        bn = self.bn
        x = F.batch_norm(self.a(x), bn.running_mean, bn.running_var, bn.weight, bn.bias, training=True)
        return self.c(torch.relu(x))


def test_statistics_that_are_updated_in_any_mode_come_back() -> None:
    models, x = [TrainingNorm(), TrainingNorm()], torch.randn(8, 4)
    before = [snapshot(m) for m in models]
    pf.fuse(models, x, alpha=0.5, data=[x])
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_shorten_their_rows_come_back(kind: type[nn.Embedding | nn.EmbeddingBag]) -> None:
    parts = [] if kind is nn.EmbeddingBag else [nn.Flatten()]
    width = 6 if kind is nn.EmbeddingBag else 18
    models = [randomised(nn.Sequential(kind(9, 6, max_norm=0.1), *parts, L(width, 8), L(8, 4)), s) for s in (0, 1)]
    words = torch.arange(9).view(3, 3)
    before = [snapshot(m) for m in models]
    pf.fuse(models, words, alpha=0.5, data=[words], refit=True)
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))


def test_code_that_writes_into_buffers_and_inputs_disturbs_nothing() -> None:
    models = [
        randomised(Net(shifting, a=L(6, 8), c=L(8, 4), seen=torch.zeros((), dtype=torch.long)), s) for s in (0, 1)
    ]
    x = inputs(VECTOR)
    kept, before = x.clone(), [snapshot(m) for m in models]
    fused = pf.fuse(models, x, alpha=0.4, data=[x], features="both")
    assert {s.kind for s in fused.blueprint} == {"elastic", "rigid"}
    assert torch.equal(x, kept)
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))


def test_silent_example_inputs_do_not_hide_mistakes() -> None:
    class Flipped(nn.Module):
        """Positions of some channels in reverse: labels say nothing of it."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.c = C(1, 4, 1), L(4 * 3, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))[:, :, 0]
            return self.c(torch.cat([h[:, :2], h[:, 2:].flip(2)], 1).flatten(1))

    model = randomised(Flipped(), 0)
    assert pf.trace(model, torch.zeros(1, 1, 1, 3))["a"].kind == "rigid"


def test_models_that_compute_differently_are_refused() -> None:
    relu, tanh = nn.Sequential(L(6, 8), nn.ReLU(), L(8, 4)), nn.Sequential(L(6, 8), nn.Tanh(), L(8, 4))
    with pytest.raises(pf.MismatchError, match="1 is a ReLU in models\\[0\\] and a Tanh in the last model"):
        pf.fuse([relu, tanh], inputs(VECTOR))
    slopes = [nn.Sequential(L(6, 8), nn.LeakyReLU(s), L(8, 4)) for s in (0.1, 0.2)]
    with pytest.raises(pf.MismatchError, match="with negative_slope=0.1, and 0.2"):
        pf.fuse(slopes, inputs(VECTOR))
    tables = [
        Net(lambda m, x: m.c(torch.relu(m.a(x))[:, m.k]), a=L(6, 8), k=torch.tensor(k), c=L(2, 4))
        for k in ([0, 1], [1, 2])
    ]
    with pytest.raises(pf.MismatchError, match="integer buffer k differs"):
        pf.fuse(tables, inputs(VECTOR))


def test_compiled_models_are_fused_like_others() -> None:
    plain = [randomised(nn.Sequential(L(6, 8), nn.ReLU(), L(8, 4)), s) for s in (0, 1)]
    result = pf.fuse([torch.compile(m, backend="eager") for m in plain], inputs(VECTOR), alpha=1.0)
    x = inputs(VECTOR)
    assert error(result.model(x), (plain[0](x) + plain[1](x)) / 2) < 1e-6


def test_a_forward_that_draws_at_random_is_named() -> None:
    model = Net(lambda m, x: m.c(F.dropout(m.a(x))), a=L(6, 8), c=L(8, 4))
    state = torch.random.get_rng_state()
    with pytest.raises(pf.TraceError, match="training=self.training"):
        pf.trace(model, inputs(VECTOR))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_modes_of_submodules_are_kept() -> None:
    models = [nn.Sequential(L(6, 8), nn.BatchNorm1d(8), L(8, 4)).train() for _ in range(2)]
    models[1][1].eval()
    fused = pf.fuse(models, inputs(VECTOR), alpha=0.5, data=[inputs(VECTOR)]).model
    assert (fused.training, fused[1].training) == (True, False)


@pytest.mark.parametrize("value", ["half", [0.1], True, {"a": None}])
def test_alpha_that_is_no_number(value: object) -> None:
    models = [randomised(Net(lambda m, x: m.c(torch.relu(m.a(x))), a=L(6, 8), c=L(8, 4)), s) for s in (0, 1)]
    with pytest.raises(pf.OptionError, match="alpha="):
        pf.fuse(models, inputs(VECTOR), alpha=value)


@pytest.mark.parametrize("data", [[torch.empty(0, 6)], [torch.full((3, 6), float("nan"))]])
def test_data_without_numbers(data: list[Tensor]) -> None:
    models = [randomised(Net(lambda m, x: m.c(torch.relu(m.a(x))), a=L(6, 8), c=L(8, 4)), s) for s in (0, 1)]
    with pytest.raises(pf.DataError):
        pf.fuse(models, inputs(VECTOR), data=data)
