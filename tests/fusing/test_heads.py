"""Heads, streams behind norms, tied ends: what transformers need, on small networks written by hand."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.modules import named_tensors
from partialfusion.nn import ViewNorm
from zoo import error, randomised

WIDTH, HEADS, WORDS = 16, 4, 11


class RMS(nn.Module):
    """Written out, as many models do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.epsilon = nn.Parameter(torch.ones(width)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.gain


class Attention(nn.Module):
    def __init__(self, *, heads: int = HEADS, key_heads: int = HEADS, rotary: bool = False, free: bool = True) -> None:
        super().__init__()
        self.heads, self.size, self.rotary, self.free = heads, WIDTH // HEADS, rotary, free
        self.share = heads // key_heads
        self.q = nn.Linear(WIDTH, heads * self.size)
        self.k, self.v = (nn.Linear(WIDTH, key_heads * self.size) for _ in range(2))
        self.o = nn.Linear(heads * self.size, WIDTH)
        self.register_buffer("frequency", 2.0 ** -torch.arange(self.size / 2))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, self.size)
        q = self.q(x).view(shape).transpose(1, 2)
        k, v = (layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.k, self.v))
        if self.rotary:
            q, k = self.turned(q), self.turned(k)
        k, v = (t.repeat_interleave(self.share, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.o(y.flatten(2) if self.free else y.reshape(batch, length, width))

    def turned(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2])[:, None] * torch.cat([self.frequency, self.frequency])
        first, second = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-second, first], -1) * angle.sin()


class Biased(Attention):
    """A number for every head, as tables of relative positions have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(HEADS, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=self.table).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """A language model of two blocks."""

    def __init__(self, *, tied: bool = False, norm: type[nn.Module] = nn.LayerNorm, **attention: object) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Parameter(torch.randn(6, WIDTH))
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(4))
        self.attention = nn.ModuleList(Attention(**attention) for _ in range(2))  # type: ignore[arg-type]
        self.up = nn.ModuleList(nn.Linear(WIDTH, 24) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(24, WIDTH) for _ in range(2))
        self.last = norm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=not tied)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions
        for k in range(2):
            x = x + self.attention[k](self.norms[2 * k](x))
            x = x + self.down[k](F.gelu(self.up[k](self.norms[2 * k + 1](x))))
        return self.head(self.last(x))


SETTINGS: dict[str, dict[str, object]] = {
    "layer norm": {},
    "norm written out": {"norm": RMS},
    "tied": {"tied": True},
    "grouped queries": {"key_heads": 2},
    "rotary": {"rotary": True},
    "rotary, grouped queries, tied": {"rotary": True, "key_heads": 2, "tied": True, "norm": RMS},
    "width of the stream for that of the heads": {"free": False},
}
every = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())


def network(seed: int, **setting: object) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(**setting).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def traced(setting: dict[str, object]) -> pf.Blueprint:
    """The blueprint of the networks of a setting, for all tests that are not about tracing."""
    return _traced(tuple(setting.items()))


@cache
def _traced(setting: tuple[tuple[str, object], ...]) -> pf.Blueprint:
    return pf.trace(network(0, **dict(setting)), words())


def words(seed: int = 0) -> Tensor:
    return torch.randint(WORDS, (3, 6), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def gap(found: nn.Module, expected: Tensor, ids: Tensor) -> float:
    return float((found(ids) - expected).abs().max() / expected.abs().max())


@every
def test_alpha_one_is_the_ensemble(setting: dict[str, object]) -> None:
    a, b, ids = network(0, **setting), network(1, **setting), words()
    before = [{n: t.clone() for n, t in named_tensors(m).items()} for m in (a, b)]
    result = pf.fuse([a, b], ids, alpha=1.0, mix=[0.3, 0.7])
    with torch.no_grad():
        expected = 0.3 * a(words(1)) + 0.7 * b(words(1))
    assert gap(result.model, expected, words(1)) < 1e-5
    assert result.shortfall == ""
    assert not result.blueprint.averaged
    for model, tensors in zip((a, b), before, strict=True):
        assert all(torch.equal(t, tensors[n]) for n, t in named_tensors(model).items())


@every
def test_fused_with_itself_it_is_itself_and_keeps_its_norms(setting: dict[str, object]) -> None:
    model, ids = network(0, **setting), words()
    result = pf.fuse([model, copy.deepcopy(model)], ids, alpha=0.0, blueprint=traced(setting))
    with torch.no_grad():
        assert gap(result.model, model(ids), ids) < 1e-5
    assert not any(isinstance(m, ViewNorm) for m in result.model.modules())


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("heads", [(2, 4), (4, 2)])
def test_results_of_unequal_numbers_of_heads_go_through_files(
    heads: tuple[int, int], alpha: float, tmp_path: Path
) -> None:
    """Some heads of the last model are matched with none of the other."""
    models, ids, path = [network(n, heads=n, key_heads=n // 2) for n in heads], words(), tmp_path / "heads.safetensors"
    result = pf.fuse(models, ids, alpha=alpha)
    for space, reduction in result.plan.items():
        assert {p.targets for p in reduction.frames} == {result.blueprint[space].width}
    pf.save(result, path)
    restored = pf.restore(path, models, ids)
    with torch.no_grad():
        for model in (pf.load(path, into=models[-1]), restored.model):
            assert torch.equal(model(ids), result.model(ids))
    assert restored.count.ratio == result.count.ratio


@every
@pytest.mark.parametrize("method", ["partial-ot", "cluster", "magnitude"])
def test_heads_are_kept_apart_as_wholes(setting: dict[str, object], method: str) -> None:
    a, b, ids = network(0, **setting), network(1, **setting), words()
    result = pf.fuse([a, b], ids, alpha=0.5, method=method, blueprint=traced(setting))  # type: ignore[arg-type]
    keys = 2 if setting.get("key_heads") == 2 else HEADS
    attention = result.model.attention[0]
    assert attention.k.out_features == attention.v.out_features == keys * 3 // 2 * (WIDTH // HEADS)
    assert attention.q.out_features == attention.o.in_features == WIDTH * 3 // 2
    assert result.model.words.weight.shape[1] == WIDTH * 3 // 2
    assert any(isinstance(m, ViewNorm) for m in result.model.modules())
    result.model(ids).sum().backward()


@every
@pytest.mark.parametrize("method", ["cluster", "magnitude", "zip"])
def test_pruning_removes_heads_and_channels_of_the_stream(setting: dict[str, object], method: str) -> None:
    model, ids = network(0, **setting), words()
    options = {"method": method, "data": [words(k) for k in range(3)], "blueprint": traced(setting)}
    result = pf.prune(model, ids, keep=0.5, **options)  # type: ignore[arg-type]
    assert result.model.attention[1].q.out_features == WIDTH // 2
    assert result.model.words.weight.shape[1] == WIDTH // 2
    assert bool(torch.isfinite(result.model(ids)).all())


def test_nothing_pruned_is_the_model() -> None:
    model, ids = network(0), words()
    result = pf.prune(model, ids, keep=1.0)
    with torch.no_grad():
        assert torch.equal(result.model(ids), model(ids))


@pytest.mark.parametrize("alpha", [0.9, 0.999])
def test_all_spaces_of_a_bundle_have_the_same_heads(alpha: float) -> None:
    """Almost everything apart: heads are rounded to all of them, and so is what has a number for each."""
    a, b, ids = network(0), network(1), words()
    for model in (a, b):
        model.attention = nn.ModuleList(Biased() for _ in range(2)).eval()
    result = pf.fuse([a, b], ids, alpha=alpha)
    assert result.count.ratio > 1.9
    assert result.model.attention[0].table.shape[0] == 2 * HEADS
    assert not result.blueprint.averaged


def test_a_pattern_holds_for_all_of_a_group() -> None:
    a, b, ids = network(0), network(1), words()
    result = pf.fuse([a, b], ids, alpha={"attention.0.q": 0.5})
    widths = {s.name: (s.before, s.after) for s in result.summary().spaces}
    assert widths["attention.0.q"] == widths["attention.0.v"] == (WIDTH, WIDTH * 3 // 2)
    assert widths["attention.1.q"] == (WIDTH, WIDTH)


def test_widths_that_the_code_takes_for_each_other_change_together() -> None:
    a, b, ids = network(0, free=False), network(1, free=False), words()
    blueprint = pf.trace(b, ids)
    assert "change width together" in str(blueprint)
    result = pf.fuse([a, b], ids, alpha=0.4, blueprint=blueprint)
    assert result.model.words.weight.shape[1] == result.model.attention[0].q.out_features == WIDTH * 3 // 2
    assert result.model.attention[0].heads == 6


@pytest.mark.parametrize("budget", [1.3, 1.6])
def test_budgets_spend_on_heads_and_streams(budget: float) -> None:
    for setting in ({}, {"free": False}, {"tied": True}):
        a, b, ids = network(0, **setting), network(1, **setting), words()
        for method in ("partial-ot", "cluster"):
            result = pf.fuse([a, b], ids, budget=budget, method=method, blueprint=traced(setting))  # type: ignore[arg-type]
            assert budget - 0.35 < result.count.ratio <= budget
    assert pf.prune(network(0), words(), budget=0.6).count.ratio <= 0.6


class Mixer(nn.Module):
    """A layer over positions serves all channels: those of two models cannot each have their own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.tokens, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(6, 6), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head(x + self.tokens(x.mT).mT)


def test_what_is_not_the_ensemble_says_so_and_is_refitted(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    a, b, ids = Mixer().eval(), Mixer().eval(), words()
    with caplog.at_level(logging.WARNING, "partialfusion"):
        result = pf.fuse([a, b], ids, alpha=1.0, allow_shortfall=True)
    assert "not the ensemble" in caplog.text
    assert "tokens.weight" in caplog.text
    assert "not the ensemble" in result.shortfall
    assert result.shortfall in str(result.summary())
    assert "only averaged, whatever the size: tokens.weight, tokens.bias" in str(result.summary())
    data = [words(k) for k in range(30)]
    refitted = pf.fuse([a, b], ids, alpha=1.0, data=data, refit=True, allow_shortfall=True)
    others = torch.cat([words(k) for k in range(30, 60)])
    with torch.no_grad():
        expected = (a(others) + b(others)) / 2
        before, after = ((r.model(others) - expected).square().mean() for r in (result, refitted))
    assert after < before


def test_parametrised_weights_become_plain_and_the_sources_stay() -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        first = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 8, 3), dim=2)
        return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 5)).eval()

    a, b, x = build(0), build(1), torch.randn(2, 3, 6)
    with torch.no_grad():
        expected = (a(x) + b(x)) / 2
        result = pf.fuse([a, b], x, alpha=1.0)
        assert gap(result.model, expected, x) < 1e-5
        assert type(result.model[0]) is nn.Conv1d
        assert torch.nn.utils.parametrize.is_parametrized(a[0])
        assert torch.equal((a(x) + b(x)) / 2, expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_hooks_that_compute_weights_leave_plain_ones(norm: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(norm(nn.Linear(3, 8)), nn.ReLU(), norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 5))
        model(torch.randn(4, 3))
        return model.eval()

    a, b, x = build(0), build(1), torch.randn(2, 3)
    before = [copy.deepcopy(m.state_dict()) for m in (a, b)]
    result = pf.fuse([a, b], x, alpha=1.0)
    assert gap(result.model, ((a(x) + b(x)) / 2).detach(), x) < 1e-5
    assert not result.model[0]._forward_pre_hooks
    assert "are plain ones in the result" in str(result.summary())
    for model, state in zip((a, b), before, strict=True):
        assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    pf.save(result, tmp_path / "plain.safetensors")
    assert torch.equal(pf.load(tmp_path / "plain.safetensors", into=build(2))(x), result.model(x))


class Padded(nn.Module):
    """Padding and, if there is one, a mask on attention are inputs; PyTorch lays both out head by head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 5)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.words(x)
        found, _ = self.attention(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=False)
        return self.head(x + found)


@pytest.mark.parametrize("masked", [False, True])
def test_masks_that_are_inputs_leave_heads_elastic(masked: bool) -> None:
    models = [randomised(Padded(), seed) for seed in (0, 1)]
    padding = torch.zeros(3, 6)
    padding[0, 4:] = -torch.inf
    inputs = (words()[:3, :6], padding, *[torch.randn(6, 6)] * masked)
    result = pf.fuse(models, inputs, alpha=1, mix=(0.3, 0.7))
    assert all(space.kind == "elastic" for space in result.blueprint if "output" not in space.reasons)
    expected = 0.3 * models[0](*inputs) + 0.7 * models[1](*inputs)
    assert error(result.model(*inputs), expected) < 1e-5


def test_a_fused_transformer_can_be_traced_again() -> None:
    result = pf.fuse([network(0), network(1)], words(), alpha=0.5)
    blueprint = pf.trace(result.model, words())
    assert blueprint["words"].kind == "permutable"
    assert "a view norm runs across it" in blueprint["words"].reasons
