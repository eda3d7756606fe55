"""Zero blocks stay zero, whatever optimiser trains the model."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import runpy
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks as global_hooks

import partialfusion as pf
from partialfusion.blocks.freeze import freeze_zeros, zero_blocks
from partialfusion.core.inputs import Inputs
from partialfusion.core.modules import named_tensors
from partialfusion.errors import MismatchError, OptionError
from partialfusion.surgery import apply
from zoo import STIFF, ZOO, Exhibit, identical, snapshot

zoo = pytest.mark.parametrize("exhibit", ZOO.values(), ids=ZOO.keys())
everything = pytest.mark.parametrize("exhibit", [*ZOO.values(), *STIFF.values()], ids=[*ZOO, *STIFF])
counts = pytest.mark.parametrize("models", [2, 3])

Optimise = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert not global_hooks


@cache
def _fused(exhibit: Exhibit, models: int, alpha: float) -> pf.Fusion:
    sources = [exhibit.model(seed) for seed in range(models)]
    return pf.fuse(sources, exhibit.inputs(), alpha=alpha, blueprint=exhibit.blueprint)


def fused(exhibit: Exhibit, models: int = 2, alpha: float = 0.4) -> pf.Fusion:
    """A fusion whose model is the test's own."""
    result = _fused(exhibit, models, alpha)
    return replace(result, model=copy.deepcopy(result.model))


@cache
def oracle(exhibit: Exhibit, models: int = 2, alpha: float = 0.4) -> dict[str, Tensor]:
    """The zero blocks by the one formula: what stays zero when every number of every source is positive."""
    result, sources = _fused(exhibit, models, alpha), [exhibit.model(seed) for seed in range(models)]
    with torch.no_grad():
        for source in sources:
            for tensor in named_tensors(source).values():
                tensor.fill_(1)
    made = apply(sources, [result.blueprint] * models, result.plan, Inputs.of(exhibit.inputs())).model
    zeros = {name: p == 0 for name, p in made.named_parameters()}
    return {name: zero for name, zero in zeros.items() if bool(zero.any())}


def train(
    model: nn.Module, exhibit: Exhibit, optimise: Optimise, steps: int, *, autocast: bool = False, seed: int = 0
) -> list[float]:
    """A plain loop on a fixed batch of four with clipped gradients, accumulated over two passes where they are scaled.

    Returns the losses of all steps.
    """
    torch.manual_seed(seed)
    dtype = next(model.parameters()).dtype
    x, y = exhibit.inputs(5).to(dtype), torch.tensor([0, 1, 2, 3])
    optimiser = optimise([p for p in model.parameters() if p.requires_grad])
    scaler = torch.amp.GradScaler("cpu", enabled=autocast)
    losses, passes = [], 2 if autocast else 1
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        for _ in range(passes):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(model(x).float(), y) / passes
            scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimiser)
        scaler.update()
        losses.append(passes * float(loss.detach()))
    return losses


def with_gradient(model: nn.Module, exhibit: Exhibit) -> dict[str, Tensor]:
    """Name → the entries that the first step of training moves; the others may belong to silent channels."""
    twin = copy.deepcopy(model)
    train(twin, exhibit, lambda p: torch.optim.SGD(p, 0.1), 1)
    return {name: p.grad != 0 for name, p in twin.named_parameters()}


def all_zero(model: nn.Module, zeros: dict[str, Tensor]) -> bool:
    parameters = dict(model.named_parameters())
    return all(bool((parameters[name].detach()[zero] == 0).all()) for name, zero in zeros.items())


@everything
@counts
def test_the_masks_are_the_blocks_that_the_formula_leaves_at_zero(exhibit: Exhibit, models: int) -> None:
    result = fused(exhibit, models)
    parameters = dict(result.model.named_parameters())
    masks = zero_blocks(parameters, result.plan, result.layout)
    expected = oracle(exhibit, models)
    assert masks.keys() == expected.keys()
    assert all(torch.equal(mask.expand_as(parameters[n]), expected[n]) for n, mask in masks.items())
    kept = sum(p.numel() for p in parameters.values()) - sum(int(z.sum()) for z in expected.values())
    assert kept == result.count.effective
    for name, mask in masks.items():
        assert mask.dtype == torch.bool
        assert all(length == 1 for length in mask.shape[2:]), name


OPTIMISERS: dict[str, tuple[Optimise, bool]] = {
    "sgd": (lambda p: torch.optim.SGD(p, 0.03, momentum=0.9, weight_decay=1e-2), False),
    "adamw": (lambda p: torch.optim.AdamW(p, 3e-3, weight_decay=0.1), False),
    "adam-autocast": (lambda p: torch.optim.Adam(p, 3e-3), True),
}


@zoo
@counts
def test_zero_blocks_survive_training(exhibit: Exhibit, models: int) -> None:
    result = fused(exhibit, models)
    zeros = oracle(exhibit, models)
    before, alive = snapshot(result.model), with_gradient(result.model, exhibit)
    for name, (optimise, autocast) in OPTIMISERS.items():
        model = copy.deepcopy(result.model)
        frozen = freeze_zeros(model, result.plan)
        losses = train(model, exhibit, optimise, 40, autocast=autocast)
        assert all_zero(model, zeros), name
        assert sum(losses[-10:]) < 0.9 * sum(losses[:10]), name
        for key, parameter in model.named_parameters():
            changed = parameter.detach() != before[key]
            expected = alive[key] & ~zeros[key] if key in zeros else alive[key]
            assert int((changed & expected).sum()) > 0.95 * int(expected.sum()) > 0, (name, key)
        frozen.remove()
        train(model, exhibit, optimise, 3, autocast=autocast)
        assert not all_zero(model, zeros), name


class Langevin(torch.optim.SGD):
    """Adds noise to every entry, whatever its gradient."""

    def step(self, closure: Callable[[], float] | None = None) -> None:
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(torch.randn_like(p), alpha=1e-3)


class Whitened(torch.optim.Optimizer):
    """The nearest orthogonal matrix to the gradient: every entry of the update depends on all others."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], float] | None = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.dim() > 1 and p.grad is not None:
                        u, _, v = torch.linalg.svd(p.grad.flatten(1) + 1e-3, full_matrices=False)
                        p.sub_((u @ v).view_as(p), alpha=1e-3)


HARDER: dict[str, Optimise] = {
    "noise": lambda p: Langevin(p, 1e-2),
    "mixing": Whitened,
    "foreach": lambda p: torch.optim.Adam(p, 1e-3, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "no-epsilon": lambda p: torch.optim.Adam(p, 1e-3, eps=0.0),
    "rprop": lambda p: torch.optim.Rprop(p, 1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-3),
}


@pytest.mark.parametrize("optimise", HARDER.values(), ids=HARDER.keys())
@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_other_rules(name: str, optimise: Optimise) -> None:
    exhibit = ZOO[name]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    with freeze_zeros(result):
        train(result.model, exhibit, optimise, 10)
        assert all_zero(result.model, zeros)
    if name == "mlp" and optimise in (HARDER["noise"], HARDER["mixing"]):
        train(result.model, exhibit, optimise, 1)
        assert not all_zero(result.model, zeros)


def test_moments_from_before_the_freeze_move_nothing() -> None:
    exhibit = ZOO["mlp"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    optimisers: list[torch.optim.Optimizer] = []

    def optimise(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if not optimisers:
            optimisers.append(torch.optim.SGD(parameters, 0.1, momentum=0.9))
        return optimisers[0]

    before = snapshot(result.model)
    train(result.model, exhibit, optimise, 3)
    result.model.load_state_dict(before)
    with freeze_zeros(result):
        assert all(bool((p.grad[zeros[n]] == 0).all()) for n, p in result.model.named_parameters() if n in zeros)
        train(result.model, exhibit, optimise, 3)
        assert all_zero(result.model, zeros)


def test_gradients_are_those_of_the_free_entries_alone() -> None:
    """So that the norm that clipping sees is the one of a model without zero blocks."""
    exhibit = ZOO["resnet"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    plain, frozen = copy.deepcopy(result.model), result.model
    freeze_zeros(frozen, result.plan)
    for model in (plain, frozen):
        model(exhibit.inputs()).square().sum().backward()
    for (name, p), q in zip(plain.named_parameters(), frozen.parameters(), strict=True):
        assert torch.equal(q.grad, p.grad.masked_fill(zeros.get(name, torch.zeros_like(p, dtype=torch.bool)), 0))


def test_infinite_gradients_in_a_zero_block_do_not_count() -> None:
    exhibit = ZOO["mlp"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    freeze_zeros(result)
    name, zero = next(iter(zeros.items()))
    weight = dict(result.model.named_parameters())[name]
    (weight * torch.where(zero, torch.inf, 1.0)).sum().backward()
    assert torch.equal(weight.grad, (~zero).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_survives_a_change_of_precision(dtype: torch.dtype) -> None:
    exhibit = ZOO["vgg-bn"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    freeze_zeros(result)
    result.model.to(dtype)
    train(result.model, exhibit, OPTIMISERS["adamw"][0], 3)
    assert all_zero(result.model, zeros)
    gradients = {n: p.grad for n, p in result.model.named_parameters()}
    assert all(bool((gradients[n][zero] == 0).all()) for n, zero in zeros.items())


def test_masks_follow_the_device() -> None:
    result = fused(ZOO["mlp"])
    frozen = freeze_zeros(result)
    result.model.to("meta")
    result.model(torch.empty(4, 10, device="meta")).sum().backward()
    frozen.restore()
    assert all(p.grad.is_meta for p in result.model.parameters())


def test_layers_released_later_are_frozen_too() -> None:
    exhibit = ZOO["vgg"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    result.model.requires_grad_(False)
    freeze_zeros(result)
    assert not any(p.requires_grad for p in result.model.parameters())
    result.model.requires_grad_(True)
    result.model(exhibit.inputs()).square().sum().backward()
    gradients = {n: p.grad for n, p in result.model.named_parameters()}
    assert all(bool((gradients[n][zero] == 0).all()) for n, zero in zeros.items())


def test_names_copies_and_files_are_as_before() -> None:
    """A copy, or what comes back from a file, is an ordinary model: it is not frozen."""
    exhibit = ZOO["resnet"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    keys = list(result.model.state_dict())
    frozen = freeze_zeros(result)
    assert list(result.model.state_dict()) == keys
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = io.BytesIO()
        torch.save(result.model, file)
        file.seek(0)
        copies = [
            copy.deepcopy(result.model),
            pickle.loads(pickle.dumps(result.model)),
            torch.load(file, weights_only=False),
        ]
    for twin in copies:
        assert identical(snapshot(result.model), twin)
        train(twin, exhibit, OPTIMISERS["sgd"][0], 1)
        assert not all_zero(twin, zeros)
    train(result.model, exhibit, OPTIMISERS["sgd"][0], 1)
    assert all_zero(result.model, zeros)
    assert repr(frozen) == f"FrozenZeros({len(zeros)} parameters with zero blocks, frozen)"
    loaded = fused(exhibit).model
    loaded.load_state_dict(result.model.state_dict())
    freeze_zeros(loaded, result.plan)
    train(loaded, exhibit, OPTIMISERS["sgd"][0], 1)
    assert all_zero(loaded, zeros)


@pytest.mark.parametrize("whole", [False, True])
def test_compiled_training(whole: bool) -> None:
    exhibit = ZOO["mlp" if whole else "resnet"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    model = torch.compile(result.model, backend="aot_eager")
    freeze_zeros(model, result.plan)
    optimiser = Langevin(result.model.parameters(), 0.01, momentum=0.9)
    before = snapshot(result.model)

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(exhibit.inputs()), torch.tensor([0, 1, 2, 3])).backward()
        optimiser.step()

    run = torch.compile(step, backend="aot_eager") if whole else step
    for _ in range(3):
        run()
    assert all_zero(result.model, zeros)
    assert not identical(before, result.model)
    torch._dynamo.reset()


def test_a_model_from_a_file_is_frozen_by_what_the_file_says(tmp_path: Path) -> None:
    exhibit = ZOO["resnet"]
    result = fused(exhibit)
    pf.save(result, path := tmp_path / "a.safetensors")
    model = pf.load(path, into=exhibit.model(0))
    with freeze_zeros(model, pf.inspect(path)):
        train(model, exhibit, OPTIMISERS["adamw"][0], 2)
    assert all_zero(model, oracle(exhibit))
    assert not identical(snapshot(result.model), model)
    with pytest.raises(MismatchError, match="in the file"):
        freeze_zeros(exhibit.model(0), pf.inspect(path))


def test_the_model_inside_a_wrapper_is_frozen() -> None:
    result = fused(ZOO["mlp"])
    freeze_zeros(nn.DataParallel(result.model), result.plan)
    hooked = [n for n, p in result.model.named_parameters() if p._backward_hooks]
    assert hooked == list(oracle(ZOO["mlp"]))


def test_a_copy_with_the_whole_result() -> None:
    result = fused(ZOO["mlp"])
    twin = copy.deepcopy(result.model)
    freeze_zeros(twin, result)
    assert [n for n, p in twin.named_parameters() if p._backward_hooks] == list(oracle(ZOO["mlp"]))


def test_an_update_by_hand() -> None:
    exhibit = ZOO["mlp"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    frozen = freeze_zeros(result)
    with torch.no_grad():
        for p in result.model.parameters():
            p.add_(1.0)
    assert not all_zero(result.model, zeros)
    frozen.restore()
    assert all_zero(result.model, zeros)


def test_nothing_is_held_and_freezing_twice_is_freezing() -> None:
    exhibit = ZOO["mlp"]
    result = fused(exhibit)
    zeros = oracle(exhibit)
    outer = freeze_zeros(result)
    with freeze_zeros(result):
        assert len(global_hooks) == 2
    assert len(global_hooks) == 1
    train(result.model, exhibit, HARDER["noise"], 2)
    assert all_zero(result.model, zeros)
    dead = weakref.ref(outer), weakref.ref(next(result.model.parameters()))
    del outer
    gc.collect()
    assert len(global_hooks) == 1
    del result
    gc.collect()
    assert [ref() for ref in dead] == [None, None]
    assert not global_hooks


def test_other_models_and_plans_without_zero_blocks_are_left_alone() -> None:
    exhibit = ZOO["mlp"]
    result, other = fused(exhibit), fused(exhibit, alpha=0.0)
    freeze_zeros(other)
    assert not global_hooks
    assert all(p._backward_hooks is None for p in other.model.parameters())
    zeros = oracle(exhibit)
    twin = copy.deepcopy(result.model)
    frozen = freeze_zeros(result)
    train(twin, exhibit, OPTIMISERS["sgd"][0], 2)
    assert not all_zero(twin, zeros)
    hooked = [n for n, p in result.model.named_parameters() if p._backward_hooks]
    assert hooked == list(zeros)
    frozen.remove()
    frozen.remove()
    assert not any(p._backward_hooks for p in result.model.parameters())


def test_clear_errors() -> None:
    exhibit = ZOO["mlp"]
    result = fused(exhibit)
    for plan in (None, {}, result.model):
        with pytest.raises(OptionError, match="pass the result of the fusion or"):
            freeze_zeros(result.model, plan)  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="0.weight has shape .* 17 channels of 0 on axis 0"):
        freeze_zeros(exhibit.model(0), result.plan)
    with pytest.raises(MismatchError, match="ResNet, which has no 0.bias"):
        freeze_zeros(ZOO["resnet"].model(0), result.plan)
    with pytest.raises(MismatchError, match="which has no bn1.bias"):
        freeze_zeros(result.model, fused(ZOO["resnet"]).plan)
    train(result.model, exhibit, OPTIMISERS["sgd"][0], 1)
    with pytest.raises(MismatchError, match="2.weight .* numbers where the plan leaves zeros"):
        freeze_zeros(result)


def test_the_example_improves_on_the_fused_model(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    scope = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "fine_tune.py"))
    before, after = scope["main"]()
    assert after.accuracy > before.accuracy
    assert after.nonzero == before.nonzero < after.dense
    printed = capsys.readouterr().out
    assert f"{before.accuracy:.1%}" in printed
    assert f"{after.accuracy:.1%}" in printed
