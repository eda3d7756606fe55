"""Whole models in block form: the same outputs, gradients and state, with the effective parameters only."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.blocks import BlockLayer, block_report, dense_state, from_blocks, to_blocks
from partialfusion.core.inputs import Inputs
from partialfusion.kernels import Plan
from partialfusion.surgery import apply
from partialfusion.surgery.verify import reordered
from zoo import STIFF, ZOO, Exhibit, error, identical, snapshot

zoo = pytest.mark.parametrize("name", ZOO)
CASES = [(2, 0.3), (2, 0.5), (3, 0.5), (2, 1.0), (3, 1.0)]
cases = pytest.mark.parametrize(("models", "alpha"), CASES)


@cache
def fused(name: str, models: int = 2, alpha: float = 0.5) -> pf.Fusion:
    exhibit = {**ZOO, **STIFF}[name]
    sources = [exhibit.model(seed) for seed in range(models)]
    return pf.fuse(sources, exhibit.inputs(), alpha=alpha, check=False, blueprint=exhibit.blueprint)


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def block_paths(model: nn.Module) -> list[str]:
    return [path for path, m in model.named_modules() if isinstance(m, BlockLayer)]


@zoo
@cases
def test_same_outputs_with_the_effective_parameters(name: str, models: int, alpha: float) -> None:
    fusion, x = fused(name, models, alpha), ZOO[name].inputs(5)
    before = snapshot(fusion.model)
    model = to_blocks(fusion)
    assert block_paths(model)
    assert error(model(x), fusion.model(x)) < 1e-5
    with torch.no_grad():
        assert error(model(x), fusion.model(x)) < 1e-5
    assert size(model) == fusion.count.effective < fusion.count.dense
    assert identical(before, fusion.model)
    checked = to_blocks(fusion, x)
    assert block_paths(checked) == block_paths(model)
    assert block_report(model).verdicts == block_report(checked).verdicts
    for path, choice in block_report(model).items():
        layer = model.get_submodule(path)
        assert choice.blocks == isinstance(layer, BlockLayer)
        assert choice.dense == fusion.model.get_submodule(path).weight.numel()
        if isinstance(layer, BlockLayer):
            assert choice.kept == size(layer.blocks) < choice.dense


@zoo
def test_nothing_is_gained_at_alpha_zero_or_where_widths_stay(name: str) -> None:
    fusion, x = fused(name, 2, 0.0), ZOO[name].inputs()
    model = to_blocks(fusion, x)
    assert not block_paths(model)
    assert torch.equal(model(x), fusion.model(x))
    assert all(not c.blocks and c.reason for c in block_report(model).values())


@zoo
@cases
def test_gradients_are_the_dense_ones(name: str, models: int, alpha: float) -> None:
    fusion, x = fused(name, models, alpha), ZOO[name].inputs(6)
    dense, model = copy.deepcopy(fusion.model), to_blocks(fusion)
    for m in (dense, model):
        m(x).square().sum().backward()
    expected = dict(dense.named_parameters())
    for path in block_paths(model):
        layer = model.get_submodule(path)
        for block, gradient in zip(layer.blocks, layer.cut(expected.pop(f"{path}.weight").grad), strict=True):
            torch.testing.assert_close(block.weight.grad, gradient, rtol=1e-4, atol=1e-4)
    ours = dict(model.named_parameters())
    for parameter, tensor in expected.items():
        torch.testing.assert_close(ours[parameter].grad, tensor.grad, rtol=1e-4, atol=1e-4)


@zoo
@cases
def test_round_trip_bit_for_bit(name: str, models: int, alpha: float) -> None:
    fusion, x = fused(name, models, alpha), ZOO[name].inputs()
    model = to_blocks(fusion)
    again = from_blocks(model)
    assert identical(fusion.model.state_dict(), again)
    assert not block_paths(again)
    assert str(again) == str(fusion.model)
    assert torch.equal(again(x), fusion.model(x))
    state = dense_state(model)
    assert list(state) == list(fusion.model.state_dict())
    assert all(torch.equal(state[k], v) for k, v in fusion.model.state_dict().items())
    other = to_blocks(fusion)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.zero_()
    other.load_state_dict(fusion.model.state_dict())
    assert identical(model.state_dict(), other)
    other.load_state_dict(model.state_dict())
    assert identical(model.state_dict(), other)


def test_training_stays_on_the_blocks() -> None:
    fusion, x = fused("vgg-bn"), ZOO["vgg-bn"].inputs()
    model, support = to_blocks(fusion).train(), {n: p != 0 for n, p in fusion.model.named_parameters()}
    optimiser = torch.optim.AdamW(model.parameters(), 0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()
    trained = from_blocks(model)
    assert not torch.equal(trained.eval()(x), fusion.model(x))
    assert error(model.eval()(x), trained(x)) < 1e-5
    for path in block_paths(model):
        weight = trained.get_submodule(path).weight
        assert not torch.equal(weight, fusion.model.get_submodule(path).weight)
        assert not bool(weight[~support[f"{path}.weight"]].any())


@zoo
def test_copies_pickles_and_saves(name: str) -> None:
    fusion, x = fused(name), ZOO[name].inputs()
    model = to_blocks(fusion)
    twins = [copy.deepcopy(model)]
    if not isinstance(model, nn.Sequential):
        twins.append(pickle.loads(pickle.dumps(model)))
    for twin in twins:
        assert torch.equal(twin(x), model(x))
        assert str(block_report(twin)) == str(block_report(model))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = to_blocks(fusion)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), model(x))


def test_two_models_are_slices_and_nothing_is_gathered() -> None:
    for name in ("mlp", "vgg-bn", "resnet", "shared", "pre-activation"):
        model = to_blocks(fused(name))
        for path in block_paths(model):
            layer = model.get_submodule(path)
            assert layer.rows is None
            assert all(len(b.runs) == 1 for b in layer.blocks)
            assert len(layer.blocks) == 3


def test_at_alpha_one_the_blocks_are_the_models() -> None:
    exhibit = ZOO["mlp"]
    sources, x = [exhibit.model(0), exhibit.model(1)], exhibit.inputs()
    model = to_blocks(pf.fuse(sources, x, alpha=1.0))
    assert [tuple(b.weight.shape) for b in model[2].blocks] == [(15, 12), (15, 12)]
    for block, source in zip(model[2].blocks, sources, strict=True):
        assert torch.equal(block.weight, source[2].weight)
    assert error(model(x), (sources[0](x) + sources[1](x)) / 2) < 1e-5


@dataclass(frozen=True)
class Remade:
    """A fused model with a plan of its own."""

    model: nn.Module
    plan: Plan
    layout: Mapping[str, pf.Space]


def shuffled(fusion: pf.Fusion, sources: list[nn.Module], x: Tensor, seed: int) -> Remade:
    """The same fusion with the channels of every elastic space in a random order, as clustering may leave them."""
    rng = np.random.default_rng(seed)
    reductions = {}
    for space in fusion.blueprint:
        r = fusion.plan[space.name]
        order = rng.permutation(r.width) if space.kind == "elastic" else np.arange(r.width)
        reductions[space.name] = replace(r, pairs=tuple(replace(p, target=order[p.target]) for p in r.pairs))
    plan = replace(fusion.plan, reductions=reductions)
    made = apply(sources, [fusion.blueprint] * len(sources), plan, Inputs.of(x))
    return Remade(made.model, plan, made.layout)


@zoo
@pytest.mark.parametrize("models", [2, 3])
def test_channels_in_any_order(name: str, models: int) -> None:
    exhibit = ZOO[name]
    sources, x = [exhibit.model(seed) for seed in range(models)], exhibit.inputs()
    fusion = fused(name, models)
    other = shuffled(fusion, sources, x, seed=0)
    model = to_blocks(other, x)
    assert block_paths(model) == block_paths(to_blocks(fusion))
    assert size(model) == fusion.count.effective
    assert error(model(x), other.model(x)) < 1e-5
    with torch.no_grad():
        assert error(model(x), other.model(x)) < 1e-5
    assert identical(other.model.state_dict(), from_blocks(model))


GRAPHS = [("mlp", 3, False), ("mlp", 2, True), ("vgg-bn", 2, False), ("mixer", 3, True), ("grouped", 2, False)]
graphs = pytest.mark.parametrize(("name", "models", "mixed"), GRAPHS)


def for_graph(name: str, models: int, mixed: bool) -> pf.Fusion | Remade:
    """A fusion whose blocks are slices, or one whose channels are mixed, so that they are gathered."""
    exhibit, fusion = ZOO[name], fused(name, models)
    sources = [exhibit.model(seed) for seed in range(models)]
    return shuffled(fusion, sources, exhibit.inputs(), seed=0) if mixed else fusion


@graphs
def test_compiled_whole(name: str, models: int, mixed: bool) -> None:
    fusion, x = for_graph(name, models, mixed), ZOO[name].inputs()
    model = to_blocks(fusion)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert error(compiled(x), fusion.model(x)) < 1e-5
    outputs = compiled(x)
    assert error(outputs, fusion.model(x)) < 1e-5
    outputs.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@graphs
def test_exported(name: str, models: int, mixed: bool) -> None:
    fusion, x = for_graph(name, models, mixed), ZOO[name].inputs()
    batch = ({0: torch.export.Dim("batch", min=2, max=64)},)
    program = torch.export.export(to_blocks(fusion), (x,), dynamic_shapes=batch)
    assert error(program.module()(x), fusion.model(x)) < 1e-5
    assert error(program.module()(x[:3]), fusion.model(x[:3])) < 1e-5


@zoo
def test_a_single_model_is_one_dense_block(name: str) -> None:
    exhibit = ZOO[name]
    model, x = exhibit.model(0), exhibit.inputs()
    blueprint = pf.trace(model, x, check=False)
    plan = reordered(blueprint, [s.name for s in blueprint if s.kind == "elastic"], np.random.default_rng(0))
    made = apply([model], [blueprint], plan, Inputs.of(x))
    assert not block_paths(to_blocks(Remade(made.model, plan, made.layout), x))


@zoo
def test_models_of_other_widths(name: str) -> None:
    exhibit = ZOO[name]
    sources, x = [exhibit.model(k, w) for k, w in enumerate(exhibit.widths)], exhibit.inputs()
    blueprint = pf.trace(sources[-1], x, check=False)
    for convention in ("value", "mass"):
        fusion = pf.fuse(sources, x, alpha=0.5, convention=convention, blueprint=blueprint)
        model = to_blocks(fusion, x)
        assert size(model) == fusion.count.effective
        assert error(model(x), fusion.model(x)) < 1e-5


def test_on_the_meta_device() -> None:
    with torch.device("meta"):
        models, x = [ZOO["resnet"].build(8) for _ in range(2)], torch.randn(2, 3, 8, 8)
    fusion = pf.fuse(models, x, alpha=1.0)
    for model in (to_blocks(fusion), to_blocks(fusion, x)):
        assert size(model) == fusion.count.effective
        assert tuple(model(x).shape) == (2, 5)


def test_the_model_and_its_modes_are_untouched() -> None:
    exhibit: Exhibit = ZOO["vgg-bn"]
    fusion = pf.fuse([exhibit.model(0), exhibit.model(1)], exhibit.inputs(), check=False)
    fusion.model.train()
    fusion.model[1].eval()
    before, modes = snapshot(fusion.model), [m.training for m in fusion.model.modules()]
    model = to_blocks(fusion, exhibit.inputs(), mode="auto")
    assert identical(before, fusion.model)
    assert [m.training for m in fusion.model.modules()] == modes
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    assert identical(before, fusion.model)
    assert [from_blocks(model)[k].training for k in range(3)] == [fusion.model[k].training for k in range(3)]
