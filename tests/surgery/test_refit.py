"""Refitting: exact where nothing is to be gained, nearer to the ensemble elsewhere, and the plan's zeros stay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from refits import data_of, distance, distance_in_size, ensemble, outputs, refitted
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.blueprint import Blueprint
from partialfusion.core.inputs import Inputs
from partialfusion.core.modules import named_tensors
from partialfusion.errors import DataError, OptionError
from partialfusion.kernels import KernelPair, Plan, Reduction
from partialfusion.surgery import apply
from partialfusion.surgery.refit import refit_model, schedule
from partialfusion.surgery.support import parameter_supports, supported_entries
from zoo import STIFF, ZOO, Exhibit, error, identical, mlp, permuted_twin, randomised, snapshot

TOLERANCE = 1e-4
zoo = pytest.mark.parametrize("exhibit", ZOO.values(), ids=ZOO.keys())
everything = pytest.mark.parametrize("exhibit", [*ZOO.values(), *STIFF.values()], ids=[*ZOO, *STIFF])


# ---- where there is nothing to gain ----


@zoo
@pytest.mark.parametrize("mix", [(0.5, 0.5), (0.8, 0.2)])
def test_the_ensemble_stays_the_ensemble(exhibit: Exhibit, mix: tuple[float, float]) -> None:
    models, data = [exhibit.model(0), exhibit.model(1)], data_of(exhibit)
    for convention in ("value", "mass"):
        fused = pf.fuse(models, data[0], alpha=1.0, mix=mix, convention=convention, blueprint=exhibit.blueprint)
        assert error(outputs(refitted(fused, models, data[:3]), data), ensemble(models, mix, data)) < TOLERANCE


@everything
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_a_model_with_itself_or_a_twin_stays_itself(exhibit: Exhibit, alpha: float) -> None:
    model, data = exhibit.model(0), data_of(exhibit)
    twin = permuted_twin(model, data[0][0], seed=5, blueprint=exhibit.blueprint)
    for models in ([model, model], [twin, model], [twin, model, model]):
        fused = pf.fuse(models, data[0], alpha=alpha, blueprint=exhibit.blueprint)
        assert error(outputs(refitted(fused, models, data[:3]), data), outputs(model, data)) < TOLERANCE


@pytest.mark.parametrize("mix", [(0.5, 0.5), (0.8, 0.2)])
def test_a_norm_of_the_inputs_stays_itself(mix: tuple[float, float]) -> None:
    """It belongs to no hidden channels, so models are averaged there, by their shares."""
    model = randomised(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), 0).eval()
    data = [torch.randn(32, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    fused = pf.fuse([model, model], alpha=0.4, mix=mix, data=data, refit=True).model
    assert error(fused[0](data[0]), model[0](data[0])) < TOLERANCE
    assert error(fused(data[0]), model(data[0])) < TOLERANCE


def test_a_twin_is_restored_whatever_the_statistics_were() -> None:
    """Statistics measured on a few samples are wrong; the targets are those of the sources."""
    exhibit = ZOO["resnet"]
    model, data = exhibit.model(0), data_of(exhibit)
    models = [permuted_twin(model, data[0][0], seed=3, blueprint=exhibit.blueprint), model]
    options = {"features": "weights", "norm": "recalibrate", "blueprint": exhibit.blueprint}
    fused = pf.fuse(models, data[0], alpha=0.3, data=[(5 * data[0][0] + 1,)], **options)
    assert error(outputs(fused.model, data), outputs(model, data)) > 0.1
    assert error(outputs(refitted(fused, models, data), data), outputs(model, data)) < TOLERANCE


# ---- where there is ----


@everything
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_outputs_come_nearer_to_the_ensemble(exhibit: Exhibit, alpha: float) -> None:
    models, data, mix = [exhibit.model(0), exhibit.model(1)], data_of(exhibit), (0.4, 0.6)
    fused = pf.fuse(models, data[0], alpha=alpha, mix=mix, data=data, blueprint=exhibit.blueprint)
    goal = ensemble(models, mix, data)
    before = distance(outputs(fused.model, data), goal)
    assert distance(outputs(refitted(fused, models, data), data), goal) < 0.7 * before


@zoo
def test_three_models_and_unequal_widths(exhibit: Exhibit) -> None:
    data = data_of(exhibit)
    for models in (
        [exhibit.model(seed) for seed in range(3)],
        [exhibit.model(0, exhibit.widths[1]), exhibit.model(1)],
    ):
        mix = [1 / len(models)] * len(models)
        fused = pf.fuse(models, data[0], alpha=0.3, data=data, blueprint=exhibit.blueprint)
        goal = ensemble(models, mix, data)
        before = distance(outputs(fused.model, data), goal)
        assert distance(outputs(refitted(fused, models, data), data), goal) < 0.7 * before


def clusters(blueprint: Blueprint, models: int, share: float, seed: int = 0) -> Plan:
    """Every elastic space in random clusters over the channels of all models, some of them of one model alone."""
    rng = np.random.default_rng(seed)
    reductions = {}
    for space in blueprint:
        n = space.width
        if space.kind != "elastic":
            pairs = [KernelPair.identity(n, write=1 / models) for _ in range(models)]
        else:
            targets = max(1, round(share * n * models))
            target = rng.permutation(
                np.concatenate([np.arange(targets), rng.integers(targets, size=n * models - targets)])
            )
            weight = (1 / np.bincount(target))[target]
            pairs = [
                KernelPair(
                    target[m * n : (m + 1) * n], np.arange(n), weight[m * n : (m + 1) * n], np.ones(n), targets, n
                )
                for m in range(models)
            ]
        frames = tuple(KernelPair.identity(n) for _ in range(models))
        reductions[space.name] = Reduction(tuple(pairs), 0, (pairs[0].targets,) * models, frames)
    return Plan(reductions, (1 / models,) * models)


def deletions(blueprint: Blueprint, share: float, seed: int = 0) -> Plan:
    """One model that keeps some channels of every elastic space."""
    rng = np.random.default_rng(seed)
    reductions = {}
    for space in blueprint:
        n = space.width
        kept = (
            np.sort(rng.choice(n, max(1, round(share * n)), replace=False)) if space.kind == "elastic" else np.arange(n)
        )
        ones = np.ones(len(kept))
        pair = KernelPair(np.arange(len(kept)), kept, ones, ones, len(kept), n)
        reductions[space.name] = Reduction((pair,), 0, (len(kept),), (KernelPair.identity(n),))
    return Plan(reductions, (1.0,))


@zoo
@pytest.mark.parametrize("kind", ["cluster one", "cluster two", "delete"])
def test_plans_of_clusters_and_deletions(exhibit: Exhibit, kind: str) -> None:
    models, data = [exhibit.model(0), exhibit.model(1)], data_of(exhibit)
    blueprint = exhibit.blueprint
    if kind != "cluster two":
        models = models[:1]
    plan = deletions(blueprint, 0.6) if kind == "delete" else clusters(blueprint, len(models), 0.6)
    surgery_result = apply(models, [blueprint] * len(models), plan, Inputs.of(data[0]))
    goal = ensemble(models, plan.mix, data)
    before = distance(outputs(surgery_result.model, data), goal)
    refit_model(
        surgery_result.model, surgery_result.layout, models, [blueprint] * len(models), plan, [*map(Inputs.of, data)]
    )
    assert distance(outputs(surgery_result.model, data), goal) < 0.7 * before


# ---- what must not change ----


@zoo
def test_zero_blocks_stay_zero_where_they_are_kept(exhibit: Exhibit) -> None:
    models, data = [exhibit.model(seed) for seed in range(3)], data_of(exhibit)
    fused = pf.fuse(models, data[0], alpha=0.5, blueprint=exhibit.blueprint)
    zeros = {name: t == 0 for name, t in named_tensors(fused.model).items()}
    refitted(fused, models, data)
    shapes = {name: tuple(p.shape) for name, p in fused.model.named_parameters()}
    support = parameter_supports(shapes, fused.layout, fused.plan)
    for name, tensor in fused.model.named_parameters():
        if tensor.dim() > 1:
            assert bool((tensor[zeros[name]] == 0).all()), name
            assert int((tensor != 0).sum()) <= supported_entries(tensor.shape, support[name])


@everything
def test_sources_modes_and_random_state_stay(exhibit: Exhibit) -> None:
    models, data = [exhibit.model(0).train(), exhibit.model(1)], data_of(exhibit, 3)
    before, blueprint = [snapshot(m) for m in models], exhibit.blueprint
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.random.get_rng_state()
        fused = pf.fuse(models, data[0], alpha=0.4, blueprint=blueprint)
        fused.model.train()
        next(iter(fused.model.children())).eval()
        modes = [m.training for m in fused.model.modules()]
        flags = [p.requires_grad for p in fused.model.parameters()]
        results.append(refitted(fused, models, data))
        assert torch.equal(torch.random.get_rng_state(), state)
        assert modes == [m.training for m in fused.model.modules()]
        assert flags == [p.requires_grad for p in fused.model.parameters()]
    assert all(identical(state, model) for state, model in zip(before, models, strict=True))
    assert models[0].training
    assert not models[1].training
    assert identical(snapshot(results[0]), results[1])


# ---- norms ----


@pytest.mark.parametrize("name", ["vgg-bn", "resnet", "pre-activation", "grouped"])
def test_norms_get_the_statistics_of_the_data(name: str) -> None:
    exhibit = ZOO[name]
    models, data = [exhibit.model(0), exhibit.model(1)], [(torch.cat([exhibit.inputs(seed) for seed in range(64)]),)]
    model = refitted(pf.fuse(models, (exhibit.inputs(),), alpha=0.4, blueprint=exhibit.blueprint), models, data)
    before = {n: b.clone() for n, b in model.named_buffers() if "running" in n}
    expected = outputs(model, data)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
            module.reset_running_stats()
            module.momentum = None
    found = outputs(model, data)
    for n, after in model.named_buffers():
        if n in before:
            assert error(after, before[n]) < 1e-2, n
    assert error(found, expected) < 1e-2, "training starts where evaluation ended"


@pytest.mark.parametrize(("affine", "bias"), [(True, True), (False, True), (False, False)])
def test_norms_without_parameters_are_folded_in(affine: bool, bias: bool) -> None:
    def build(seed: int) -> nn.Module:
        layers = [nn.Linear(6, 9, bias=bias), nn.BatchNorm1d(9, affine=affine), nn.ReLU(), nn.Linear(9, 3)]
        return randomised(nn.Sequential(*layers), seed)

    data = [(torch.randn(50, 6, generator=torch.Generator().manual_seed(seed)),) for seed in range(3)]
    for models, alpha in (([build(0), build(1)], 1.0), ([build(0), build(0)], 0.5)):
        fused = pf.fuse(models, data[0], alpha=alpha, data=data)
        assert error(outputs(refitted(fused, models, data), data), ensemble(models, (0.5, 0.5), data)) < TOLERANCE


def test_a_channel_that_its_norm_switched_off_stays_off() -> None:
    exhibit = ZOO["resnet"]
    models, data = [exhibit.model(0), exhibit.model(1)], data_of(exhibit)
    with torch.no_grad():
        for model in models:
            model.layer1[0].bn2.weight.zero_()
            model.layer1[0].bn2.bias.zero_()
    fused = pf.fuse(models, data[0], alpha=0.4, blueprint=exhibit.blueprint)
    merged = fused.model.layer1[0].conv2.weight.clone()
    model = refitted(fused, models, data)
    assert bool((model.layer1[0].bn2.weight == 0).all())
    assert bool((model.layer1[0].bn2.bias == 0).all())
    assert not bool((model.layer1[0].conv2.weight == 0).all()), "there must be something left to train"
    assert model.layer1[0].conv2.weight.shape == merged.shape


# ---- data ----


@everything
def test_few_samples_and_dead_channels(exhibit: Exhibit) -> None:
    models = [exhibit.model(0), exhibit.model(1)]
    with torch.no_grad():
        for model in models:
            for tensor in model.parameters():
                if tensor.dim() > 1:
                    tensor[:2] = 0.0
    x = exhibit.inputs(3)
    for data in ([(x[:1],)], [(x[:2],)], [(torch.zeros_like(x),)]):
        fused = pf.fuse(models, (x,), alpha=0.4, blueprint=exhibit.blueprint)
        model = refitted(fused, models, data)
        assert all(bool(torch.isfinite(t).all()) for t in named_tensors(model).values() if t.is_floating_point())
        assert bool(torch.isfinite(model(x)).all())
        seen = [(data[0][0],)]
        assert distance_in_size(outputs(model, seen), ensemble(models, (0.5, 0.5), seen)) < 0.1


class Shuffled:
    """Other batches, in another order, each time it is read."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.generator = x, torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[tuple[Tensor]]:
        order = torch.randperm(len(self.x), generator=self.generator)
        return iter([(part,) for part in self.x[order].split(8)])


@pytest.mark.parametrize("name", ["mlp", "vgg-bn", "shared"])
def test_data_that_is_too_large_to_keep_is_streamed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exhibit = ZOO[name]
    models, data = [exhibit.model(0), exhibit.model(1)], data_of(exhibit)
    x = torch.cat([x for (x,) in data])

    def result() -> pf.Fusion:
        return pf.fuse(models, data[0], alpha=0.4, blueprint=exhibit.blueprint)

    kept = refitted(result(), models, data)
    monkeypatch.setattr(schedule, "KEPT", 0)
    streamed = refitted(result(), models, data)
    assert identical(snapshot(kept), streamed)
    shuffled = refitted(result(), models, Shuffled(x))
    assert error(outputs(shuffled, data), outputs(kept, data)) < TOLERANCE
    monkeypatch.setattr(schedule, "KEPT", 9 * x[0].numel() * 4 * len(x))  # the batches, and some of the targets
    some = refitted(result(), models, data)
    assert identical(snapshot(kept), some)


def test_early_layers_are_fitted_on_a_part_of_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    exhibit = ZOO["vgg"]
    models, data = [exhibit.model(0), exhibit.model(1)], data_of(exhibit, 64)
    goal = ensemble(models, (0.5, 0.5), data)

    def result() -> pf.Fusion:
        return pf.fuse(models, data[0], alpha=0.2, blueprint=exhibit.blueprint)

    before = distance(outputs(result().model, data), goal)
    whole = distance(outputs(refitted(result(), models, data), data), goal)
    monkeypatch.setattr(schedule, "ENOUGH", 1)
    monkeypatch.setattr(schedule, "PER_INPUT", 16)
    part = [refitted(result(), models, data) for _ in range(2)]
    assert identical(snapshot(part[0]), part[1])
    found = distance(outputs(part[0], data), goal)
    assert whole < found < (whole + before) / 2


def test_bad_data_and_options_are_named() -> None:
    exhibit = ZOO["mlp"]
    models, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    fused = pf.fuse(models, x)
    for ridge in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="ridge"):
            refitted(fused, models, [(x,)], ridge=ridge)
    state = snapshot(fused.model)
    with pytest.raises(DataError, match="no batch"):
        refit_model(fused.model, fused.layout, models, [fused.blueprint] * 2, fused.plan, [])
    with pytest.raises(DataError, match="not finite"):
        refitted(fused, models, [(x.clone().fill_(3e38),)])
    with pytest.raises(DataError, match=r"batch 0 of shapes \[\(4, 9\)\]"):
        refit_model(fused.model, fused.layout, models, [fused.blueprint] * 2, fused.plan, [Inputs.of(x[:, :9])])
    assert identical(state, fused.model)


# ---- which weights ----


@everything
def test_every_weight_is_refitted_in_order_and_reported(exhibit: Exhibit, caplog: pytest.LogCaptureFixture) -> None:
    models, data = [exhibit.model(0), exhibit.model(1)], data_of(exhibit, 2)
    told: list[tuple[str, int, int]] = []
    fused = pf.fuse(models, data[0], alpha=0.2, blueprint=exhibit.blueprint)
    before = snapshot(fused.model)
    refitted(fused, models, data, on_progress=lambda *news: told.append(news))
    assert not warnings_of(caplog)
    weights = [n for n, p in fused.model.named_parameters() if p.dim() > 1 and n.endswith("weight")]
    assert set(weights) <= {label for label, _, _ in told}
    assert [(done, total) for _, done, total in told] == [(k + 1, len(told)) for k in range(len(told))]
    # what reads the input is a mix of what the models compute already, so there is nothing to fit
    read = {b.parameter for s in fused.layout.values() for b in s.bindings if b.role == "reads"}
    fitted = [n for n in weights if n in read]
    assert {n for n in fitted if torch.equal(fused.model.state_dict()[n], before[n])} == set()


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("partialfusion"))


class Odd(nn.Module):
    """Weights in all kinds of products: turned, from the left, with a bias apart, with a bias in common, looked up."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.table = nn.Embedding(7, width)
        self.turned, self.plain = nn.Parameter(torch.zeros(width, width)), nn.Parameter(torch.zeros(width, width))
        self.left, self.shift = nn.Parameter(torch.zeros(width, width)), nn.Parameter(torch.zeros(width))
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)
        self.two.bias = self.one.bias
        self.out = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.table(tokens).mean(1) @ self.turned.T)
        x = torch.tanh(torch.matmul(x, self.plain) + self.shift)
        x = torch.tanh((self.left @ x.T).T)
        return self.out(torch.relu(self.one(x)) + torch.relu(self.two(x)))


def test_products_of_all_kinds(caplog: pytest.LogCaptureFixture) -> None:
    models = [randomised(Odd(), seed) for seed in (0, 1)]
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randint(7, (16, 5), generator=generator),) for _ in range(4)]
    fused = pf.fuse(models, data[0], alpha=0.3)
    before, goal = snapshot(fused.model), ensemble(models, (0.5, 0.5), data)
    gap = distance(outputs(fused.model, data), goal)
    model = refitted(fused, models, data)
    changed = {n for n, t in model.state_dict().items() if not torch.equal(t, before[n])}
    assert {"turned", "plain", "left", "out.weight", "out.bias"} == changed
    assert "one.weight, two.weight not refitted" in warnings_of(caplog)
    assert "table" not in warnings_of(caplog)
    assert distance(outputs(model, data), goal) < gap
    itself = pf.fuse([models[0]] * 2, data[0], alpha=0.3)
    assert error(outputs(refitted(itself, [models[0]] * 2, data), data), outputs(models[0], data)) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    models = [randomised(mlp(), seed).to(dtype) for seed in (0, 1)]
    data = [(torch.randn(64, 10, generator=torch.Generator().manual_seed(0)).to(dtype),)]
    fused = pf.fuse(models, data[0], alpha=0.2)
    goal = ensemble(models, (0.5, 0.5), data).double()
    before = distance(outputs(fused.model, data).double(), goal)
    model = refitted(fused, models, data)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert distance(outputs(model, data).double(), goal) < 0.7 * before
