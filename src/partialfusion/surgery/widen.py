"""One model made as wide as a fused one: what the extra channels are worth without a second model.

The two baselines of the paper's appendix on fine-tuning. Both go by the one formula with a single model; they differ in
what the added channels hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, trace_labels
from ..core.alone import alone
from ..core.inputs import Inputs
from ..core.modules import named_tensors
from ..errors import MismatchError, OptionError
from ..kernels import KernelPair, Plan, Reduction
from .apply import SurgeryResult, apply
from .config import follow_config
from .resize import resized
from .verify import verify


class Planned(Protocol):
    """What has a plan: a fusion."""

    @property
    def plan(self) -> Plan: ...


@alone
def widen_net2net(
    model: nn.Module,
    example_inputs: Any,
    widths: Mapping[str, int] | Plan | Planned,
    *,
    seed: int,
    noise: float = 0.0,
    blueprint: Blueprint | None = None,
) -> nn.Module:
    """A wider model of the same function (Net2WiderNet): added channels are copies of random old ones.

    A channel with c copies is read 1/c from each, so the outputs stay as they were. Copies also receive the same
    gradients; `noise` sets them apart, at the price of an exact function.

    Args:
        model: the model to widen; it is only read.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs.
        widths: space → number of channels, or a plan or fusion whose widths to take. Spaces not named stay.
        seed: random seed of the choice of channels and of the noise.
        noise: standard deviation of the noise on the weights of added channels, incoming and outgoing, relative to
            the root mean square of the parameter.
        blueprint: a traced blueprint of the model, to save tracing it again.

    Returns:
        A new module of the model's class.
    """
    if not noise >= 0.0:
        raise OptionError(f"noise={noise} must not be negative: it is a relative standard deviation, such as 0.01")
    rng = np.random.default_rng(seed)

    def copies(old: int, new: int) -> KernelPair:
        source = np.concatenate([np.arange(old), rng.integers(old, size=new - old)])
        read = 1.0 / np.bincount(source)[source]
        return KernelPair(np.arange(new), source, np.ones(new), read, new, old)

    blueprint, result = _widened(model, example_inputs, widths, blueprint, copies, seed)
    if noise > 0.0:
        _disturb(result, blueprint, noise, torch.Generator("cpu").manual_seed(seed))
    return result.model


@alone
def widen_random(
    model: nn.Module,
    example_inputs: Any,
    widths: Mapping[str, int] | Plan | Planned,
    *,
    seed: int,
    blueprint: Blueprint | None = None,
) -> nn.Module:
    """A wider model whose added channels start at random; the weights between old channels stay as they are.

    Every entry that belongs to an added channel, incoming or outgoing, is drawn as the layer itself would start at its
    new shape (its `reset_parameters`; PyTorch's linear layers and convolutions draw uniformly within 1/√fan-in, batch
    norms start as the identity). A parameter that no layer initialises is drawn from the normal distribution with the
    mean and standard deviation of its trained entries. The old channels read the added ones, so the function changes.

    Args:
        model: the model to widen; it is only read.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs.
        widths: space → number of channels, or a plan or fusion whose widths to take. Spaces not named stay.
        seed: random seed of the added weights.
        blueprint: a traced blueprint of the model, to save tracing it again.

    Returns:
        A new module of the model's class.
    """

    def old_ones(old: int, new: int) -> KernelPair:
        index = np.arange(old)
        return KernelPair(index, index, np.ones(old), np.ones(old), new, old)

    blueprint, result = _widened(model, example_inputs, widths, blueprint, old_ones, seed)
    fresh = _fresh(result.model, named_tensors(model), seed)
    with torch.no_grad():
        for name, target, added in _added(result, blueprint):
            target.copy_(torch.where(added, fresh[name].to(target), target))
    return result.model


def _widened(
    model: nn.Module,
    example_inputs: Any,
    widths: Mapping[str, int] | Plan | Planned,
    blueprint: Blueprint | None,
    pair: Callable[[int, int], KernelPair],
    seed: int,
) -> tuple[Blueprint, SurgeryResult]:
    """The model with every space at its width, its channels placed by `pair(old width, new width)`."""
    inputs = Inputs.of(example_inputs)
    if blueprint is None:
        blueprint = verify(model, inputs, trace_labels(model, inputs), seed)
    elif {name: tuple(t.shape) for name, t in named_tensors(model).items()} != dict(blueprint.shapes):
        raise MismatchError("the blueprint belongs to another model: trace the model that is to be widened")
    wanted = _widths(widths, blueprint)
    reductions = {}
    for space in blueprint:
        n, m = space.width, wanted.get(space.name, space.width)
        reductions[space.name] = Reduction((pair(n, m),), 0, (m,), (KernelPair.identity(n),))
    result = apply([model], [blueprint], Plan(reductions, (1.0,)), inputs)
    follow_config(result.model, model, inputs)
    return blueprint, result


def _widths(widths: Mapping[str, int] | Plan | Planned, blueprint: Blueprint) -> dict[str, int]:
    """Space → channels, checked against the model."""
    named: Mapping[str, Any] = widths if isinstance(widths, Mapping) else widths.plan
    found = {}
    for name, value in named.items():
        width = value.width if isinstance(value, Reduction) else value
        if name not in blueprint.by_name:
            near = get_close_matches(name, list(blueprint.by_name))
            hint = f"did you mean {' or '.join(near)}?" if near else f"its spaces are {', '.join(blueprint.by_name)}"
            raise OptionError(f"widths: the model has no space {name!r}; {hint}")
        space = blueprint[name]
        if isinstance(width, bool) or not isinstance(width, (int, np.integer)) or width < space.width:
            raise OptionError(
                f"widths: {width!r} channels for {name}, which has {space.width}: give a whole number, not smaller"
            )
        if space.kind != "elastic" and width != space.width:
            raise OptionError(
                f"widths: {width} channels for {name}, but it is {space.kind} ({'; '.join(space.reasons)}): it keeps "
                f"its {space.width}"
            )
        found[name] = int(width)
    return found


def _disturb(result: SurgeryResult, blueprint: Blueprint, noise: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        for _, target, added in _added(result, blueprint):
            if isinstance(target, nn.Parameter):
                drawn = torch.randn(target.shape, generator=generator, device="cpu").to(target)
                target.add_(drawn * added * target.square().mean().sqrt(), alpha=noise)


def _added(result: SurgeryResult, blueprint: Blueprint) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Parameters and buffers that grew: name, tensor, and a mask of its shape, true where a channel was added."""
    tensors = named_tensors(result.model)
    masks: dict[str, Tensor] = {}
    for name, space in result.layout.items():
        old = blueprint[name].width
        for binding in space.bindings if space.width > old else ():
            tensor = tensors[binding.parameter]
            mask = masks.setdefault(
                binding.parameter, torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
            )
            mask.index_fill_(binding.axis, torch.from_numpy(binding.index[old:].reshape(-1)).to(tensor.device), True)
    for parameter, mask in masks.items():
        yield parameter, tensors[parameter], mask


def _fresh(model: nn.Module, trained: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Name → tensor of the model's shapes as a new model would start.

    Layers draw from PyTorch's global generator, which is seeded here and restored; on the CPU, so that the seed means
    the same on every device. Parents come after their children, since they may know better. What is still not a
    number afterwards has no layer that initialises it.

    Args:
        model: the wider model.
        trained: the tensors of the model before it was widened.
        seed: random seed of the added weights.
    """
    twin = resized(model, {name: tuple(t.shape) for name, t in named_tensors(model).items()}).to_empty(device="cpu")
    tensors = {name: t for name, t in named_tensors(twin).items() if t.is_floating_point()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for tensor in tensors.values():
            tensor.fill_(torch.nan)
        for module in reversed(list(twin.modules())):
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
        for name, tensor in tensors.items():
            if bool(tensor.isnan().any()):
                known = trained[name].detach().float()
                drawn = torch.randn(tensor.shape, device="cpu")
                tensor.copy_(drawn * known.std(correction=0).to("cpu") + known.mean().to("cpu"))
    return tensors
