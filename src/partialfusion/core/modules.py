"""Modules: their tensors by name, their modes, and running them without leaving a trace."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under their first name; a tied tensor appears once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def not_finite(tensor: Tensor) -> int:
    """How many numbers are not finite. Where the sum is, all of them are, and a sum is three times as fast."""
    total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
    return 0 if bool(torch.isfinite(total)) else int((~torch.isfinite(tensor)).sum())


def inside(path: str, name: str) -> str:
    """The name of a tensor of the module at a path."""
    return f"{path}.{name}" if path else name


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer → the first name of the same tensor."""
    first: dict[int, str] = {id(t): name for name, t in named_tensors(model).items()}
    every = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return {name: first[id(t)] for name, t in every}


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The model with some modules replaced, wherever it keeps them; returns the replacement where that is all of it."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None and child in replacements:
                module._modules[name] = replacements[child]
    return replacements.get(model, model)


def sharing_tensors(model: nn.Module, instead: Mapping[Tensor, Tensor] | None = None) -> nn.Module:
    """A copy of a model with modules of its own that hold the same tensors, or others instead of some."""
    memo: dict[int, object] = {id(t): t for t in named_tensors(model).values()}
    for module in model.modules():
        memo |= {id(value): value for value in vars(module).values() if isinstance(value, Tensor)}
    memo |= {id(tensor): other for tensor, other in (instead or {}).items()}
    twin: nn.Module = copy.deepcopy(model, memo)
    return twin


def forget(model: nn.Module) -> nn.Module:
    """The model without what its code keeps of earlier runs in evaluation mode, computed from weights that may change.

    Such code drops it in training mode, so modules that keep tensors in a dictionary go there and back.
    """
    for module in list(model.modules()):
        kept = [v for name, v in vars(module).items() if isinstance(v, dict) and not name.startswith("_")]
        if any(isinstance(value, Tensor) for entries in kept for value in entries.values()):
            modes = [(m, m.training) for m in module.modules()]
            module.train()
            for m, mode in modes:
                m.training = mode
    return model


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
    """The models in evaluation mode, without gradients; what their code does to buffers or random state is undone, and
    what embeddings with a largest norm do to their weights.

    Should they draw at random, then from this seed.
    """
    held = [(m, dict(m._buffers)) for model in models for m in model.modules()]
    written = [t for model in models for t in (*model.buffers(), *_renormed(model)) if not t.is_meta]
    before = [(t, t._version, t.detach().clone()) for t in written]
    cuda = sorted({b.device for model in models for b in named_tensors(model).values() if b.is_cuda}, key=str)
    try:
        with evaluation_mode(*models), torch.no_grad(), torch.random.fork_rng(devices=cuda):
            torch.default_generator.manual_seed(seed)
            for device in cuda:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield
    finally:
        for module, own in held:  # code may put another tensor in the place of a buffer
            module._buffers.update(own)
        with torch.no_grad():
            for tensor, version, value in before:
                if tensor._version != version or _differs(tensor, value):
                    tensor.copy_(value)


def _renormed(model: nn.Module) -> list[Tensor]:
    """The weights that PyTorch shortens in place, in evaluation mode too, where a row is longer than it may be."""
    kinds = nn.Embedding, nn.EmbeddingBag
    return [m.weight for m in model.modules() if isinstance(m, kinds) and m.max_norm is not None]


def _differs(buffer: Tensor, value: Tensor) -> bool:
    """Batch norms write their statistics without counting a new version; sparse tensors do not compare."""
    return buffer.layout == torch.strided and not torch.equal(buffer, value)


@contextmanager
def without_cache(*models: nn.Module) -> Iterator[None]:
    """The models with `use_cache` off in every configuration that has it on: a cache is no result."""
    configs = {id(c): c for model in models for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    changed = []
    try:
        for config in configs.values():
            if getattr(config, "use_cache", None) is True:
                with suppress(AttributeError):  # one that cannot be written stays
                    config.use_cache = False
                    changed.append(config)
        yield
    finally:
        for config in changed:
            config.use_cache = True


@contextmanager
def as_exported(model: nn.Module) -> Iterator[None]:
    """Let a model on the meta device take the branches that it takes while torch.export traces it: there, too, code
    cannot look at the values of tensors, and libraries ask beforehand. Any other model runs as always."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = before or any(t.is_meta for t in named_tensors(model).values())
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(" .:")
