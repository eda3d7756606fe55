"""A copy of a module with parameters of other shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..core.modules import named_tensors


def resized(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], *, follow: bool = False) -> nn.Module:
    """A deep copy whose floating-point parameters and buffers have the given shapes and no content yet.

    Tied tensors stay tied, because the copy replaces a tensor wherever it is met; nothing large is copied. The
    attributes of PyTorch's own modules that repeat a width follow.

    Args:
        model: the module to copy.
        shapes: name → new shape.
        follow: let whole numbers that other modules keep follow too, where they equal a size that changes in one way
            only among the parameters below that module.
    """
    memo: dict[int, object] = {}
    for name, tensor in named_tensors(model).items():
        if not tensor.is_floating_point():
            continue
        fresh = torch.empty(shapes[name], dtype=tensor.dtype, device=tensor.device)
        memo[id(tensor)] = (
            nn.Parameter(fresh, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fresh
        )
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    result: nn.Module = copy.deepcopy(model, memo)
    for module in result.modules():
        for kind, update in ATTRIBUTES.items():
            if isinstance(module, kind):
                update(module)
    if follow:
        _follow_widths(model, result)
    return result


def _follow_widths(model: nn.Module, result: nn.Module) -> None:
    """Numbers such as self.width in a user's own module."""
    for before, after in zip(model.modules(), result.modules(), strict=True):
        if type(before).__module__.startswith("torch.nn"):
            continue
        changes: dict[int, set[int]] = {}
        for old, new in zip(before.parameters(), after.parameters(), strict=True):
            for n, m in zip(old.shape, new.shape, strict=True):
                changes.setdefault(n, set()).add(m)
        for name, value in list(vars(after).items()):
            if type(value) is int and changes.get(value, {value}) != {value} and len(changes[value] - {value}) == 1:
                setattr(after, name, next(iter(changes[value] - {value})))


def _linear(module: nn.Linear) -> None:
    module.out_features, module.in_features = module.weight.shape


def _convolution(module: _ConvNd) -> None:
    first, second = module.weight.shape[:2]
    if isinstance(module, _ConvTransposeNd):
        module.in_channels, module.out_channels = first, second * module.groups
        return
    module.groups = module.groups * first // module.out_channels if module.groups > 1 else 1
    module.out_channels, module.in_channels = first, second * module.groups


def _norm(module: _NormBase) -> None:
    width = next((t for t in (module.weight, module.running_mean) if isinstance(t, Tensor)), None)
    if width is not None:
        module.num_features = width.shape[0]


def _embedding(module: nn.Embedding) -> None:
    module.embedding_dim = module.weight.shape[1]


def _prelu(module: nn.PReLU) -> None:
    module.num_parameters = module.weight.shape[0]


ATTRIBUTES: dict[type[nn.Module], Callable[..., None]] = {
    nn.Linear: _linear,
    _ConvNd: _convolution,
    _NormBase: _norm,
    nn.Embedding: _embedding,
    nn.PReLU: _prelu,
}
