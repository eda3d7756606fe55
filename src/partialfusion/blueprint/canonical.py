"""A model whose norms across channels are single operations, however they are written, so that the trace knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..core.modules import forget, replace_modules, sharing_tensors
from ..nn import ViewNorm
from .norms import NormLayer


@torch.library.custom_op("partialfusion::norm", mutates_args=())
def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, path: str, dim: int, settings: Sequence[float]
) -> Tensor:
    """Stands for a norm across channels in a traced graph; carried out, it only hands on its input."""
    return x.clone()


@torch.library.custom_op("partialfusion::view_norm", mutates_args=())
def view_norm(
    x: Tensor,
    views: Tensor,
    shares: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dim: int,
    settings: Sequence[float],
) -> Tensor:
    """Stands for a `ViewNorm` in a traced graph; carried out, it only hands on its input."""
    return x.clone()


for _operation in (norm, view_norm):
    _operation.register_fake(lambda x, *others: torch.empty_like(x))


class CanonicalViewNorm(nn.Module):
    """A view norm as one operation, with the tensors of the module that it stands for."""

    def __init__(self, module: ViewNorm) -> None:
        super().__init__()
        self.names = module.weight_name, module.bias_name
        self.dim, self.eps = module.dim, module.eps
        self.settings = [module.eps, float(module.centred), float(module.positions), module.offset]
        _take_tensors(module, self)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (getattr(self, name) for name in self.names)
        return torch.ops.partialfusion.view_norm(x, self.views, self.shares, weight, bias, self.dim, self.settings)


def _take_tensors(module: nn.Module, into: nn.Module) -> None:
    """Let another module hold a module's own parameters and buffers, under the same names, and its hooks."""
    for name, parameter in module._parameters.items():
        into.register_parameter(name, parameter)
    for name, buffer in module._buffers.items():
        into.register_buffer(name, buffer)
    for name, hooks in vars(module).items():
        if name.startswith(("_forward_hooks", "_forward_pre_hooks")):  # what they do belongs to the graph
            setattr(into, name, hooks)


class CanonicalNorm(nn.Module):
    """A norm across channels as one operation, with the tensors of the module that it stands for."""

    def __init__(self, module: nn.Module, layer: NormLayer) -> None:
        super().__init__()
        self.layer, self.eps = layer, layer.eps
        _take_tensors(module, self)
        for name in layer.then:
            self.add_module(name, getattr(module, name))

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        weight, bias = (None if name is None else getattr(self, name) for name in (layer.weight, layer.bias))
        settings = [layer.eps, float(layer.centred), float(layer.positions), layer.offset]
        y: Tensor = torch.ops.partialfusion.norm(x, weight, bias, layer.path, layer.dim, settings)
        for name in layer.then:
            y = getattr(self, name)(y)
        return y


def canonical(model: nn.Module, norms: Mapping[str, NormLayer]) -> nn.Module:
    """A copy of a model that shares all its tensors, with norms across channels as single operations."""
    twin = forget(sharing_tensors(model))
    modules = dict(twin.named_modules(remove_duplicate=False))
    replacements: dict[nn.Module, nn.Module] = {
        m: CanonicalViewNorm(m) for m in modules.values() if type(m) is ViewNorm
    }
    replacements |= {modules[path]: CanonicalNorm(modules[path], layer) for path, layer in norms.items()}
    return replace_modules(twin, replacements)
