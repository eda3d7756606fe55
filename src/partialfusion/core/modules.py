"""Modules: their tensors by name, their modes, and running them without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under their first name; a tied tensor appears once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer → the first name of the same tensor."""
    first: dict[int, str] = {id(t): name for name, t in named_tensors(model).items()}
    every = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return {name: first[id(t)] for name, t in every}


@contextmanager
def evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """The models in evaluation mode, every submodule's own mode restored afterwards."""
    modes = [(m, m.training) for model in models for m in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def at_rest(*models: nn.Module, seed: int = 0) -> Iterator[None]:
    """The models in evaluation mode, without gradients; what their code does to buffers or random state is undone.

    Should they draw at random, then from this seed.
    """
    buffers = [b for model in models for b in model.buffers() if not b.is_meta]
    before = [(b, b._version, b.detach().clone()) for b in buffers]
    cuda = sorted({b.device for model in models for b in named_tensors(model).values() if b.is_cuda}, key=str)
    try:
        with evaluation_mode(*models), torch.no_grad(), torch.random.fork_rng(devices=cuda):
            torch.default_generator.manual_seed(seed)
            for device in cuda:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield
    finally:
        with torch.no_grad():
            for buffer, version, value in before:
                if buffer._version != version or _differs(buffer, value):
                    buffer.copy_(value)


def _differs(buffer: Tensor, value: Tensor) -> bool:
    """Batch norms write their statistics without counting a new version; sparse tensors do not compare."""
    return buffer.layout == torch.strided and not torch.equal(buffer, value)


def as_inputs(example_inputs: Any) -> tuple[Any, ...]:
    """A tensor or a tuple of positional inputs, as a tuple."""
    return tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)


def to_device_of(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of the inputs on the device where the model lives."""
    device = next((t.device for t in named_tensors(model).values()), None)

    def copied(value: Any) -> Any:
        return value.detach().clone().to(device or value.device) if isinstance(value, Tensor) else value

    return tuple(tree_map(copied, inputs))


def run(model: nn.Module, inputs: tuple[Any, ...], seed: int = 0) -> Any:
    """The model's output in evaluation mode, without gradients; should it draw at random, then from this seed."""
    with at_rest(model, seed=seed):
        return model(*to_device_of(model, inputs))


def shapes_of(inputs: Iterable[Any]) -> list[Any]:
    """What inputs are, for messages: the shape of a tensor, the type of anything else."""
    return [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in inputs]


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(" .:")
