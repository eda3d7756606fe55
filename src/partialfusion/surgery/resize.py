"""A copy of a module with parameters of other shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..core.modules import forget, named_tensors
from .numbers import set_number


def resized(
    model: nn.Module,
    shapes: Mapping[str, tuple[int, ...]],
    numbers: Mapping[str, Mapping[str, int]] | None = None,
) -> nn.Module:
    """A deep copy whose floating-point parameters and buffers have the given shapes and no content yet.

    Tied tensors stay tied, because the copy replaces a tensor wherever it is met; nothing large is copied. The
    attributes of PyTorch's own modules that repeat a width follow.

    Args:
        model: the module to copy.
        shapes: name → new shape; tensors that are not named are copied.
        numbers: module path → attribute → value, of whole numbers in other modules that repeat a size.
    """
    memo: dict[int, object] = {}
    for name, tensor in named_tensors(model).items():
        if not tensor.is_floating_point() or name not in shapes:
            continue
        fresh = torch.empty(shapes[name], dtype=tensor.dtype, device=tensor.device)
        memo[id(tensor)] = (
            nn.Parameter(fresh, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fresh
        )
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    result = forget(copy.deepcopy(model, memo))
    for module in result.modules():
        for kind, update in ATTRIBUTES.items():
            if isinstance(module, kind):
                update(module)
    modules = dict(result.named_modules())
    for path, values in (numbers or {}).items():
        for name, value in values.items():
            set_number(modules[path], name, value)
    return result


def _linear(module: nn.Linear) -> None:
    module.out_features, module.in_features = module.weight.shape


def _convolution(module: _ConvNd) -> None:
    first, second = module.weight.shape[:2]
    turned = isinstance(module, _ConvTransposeNd)
    if module.groups > 1:
        module.groups = module.groups * first // (module.in_channels if turned else module.out_channels)
    module.out_channels, module.in_channels = first, second * module.groups
    if turned:
        module.out_channels, module.in_channels = module.in_channels, module.out_channels


def _norm(module: _NormBase) -> None:
    width = next((t for t in (module.weight, module.running_mean) if isinstance(t, Tensor)), None)
    if width is not None:
        module.num_features = width.shape[0]


def _layer_norm(module: nn.LayerNorm | nn.RMSNorm) -> None:
    if module.weight is not None and module.weight.dim() == 1:
        module.normalized_shape = (module.weight.shape[0],)


def _group_norm(module: nn.GroupNorm) -> None:
    if module.weight is not None:
        if module.num_groups > 1:  # groups keep their size; a single one holds all channels
            module.num_groups = module.num_groups * module.weight.shape[0] // module.num_channels
        module.num_channels = module.weight.shape[0]


def _attention(module: nn.MultiheadAttention) -> None:
    """Heads keep their size; the class has the width of the stream as the width of all heads together."""
    module.embed_dim = module.out_proj.weight.shape[0]
    module.num_heads = module.out_proj.weight.shape[1] // module.head_dim
    if module._qkv_same_embed_dim:
        module.kdim = module.vdim = module.embed_dim
    else:
        module.kdim, module.vdim = module.k_proj_weight.shape[1], module.v_proj_weight.shape[1]


def _embedding(module: nn.Embedding | nn.EmbeddingBag) -> None:
    module.embedding_dim = module.weight.shape[1]


def _prelu(module: nn.PReLU) -> None:
    module.num_parameters = module.weight.shape[0]


def _recurrent(module: nn.RNNBase) -> None:
    first, second, *rest = module.all_weights[0]
    module.input_size, module.hidden_size = first.shape[1], second.shape[1]
    if module.proj_size:
        module.proj_size, module.hidden_size = module.hidden_size, rest[-1].shape[1]


def _recurrent_cell(module: nn.RNNCellBase) -> None:
    module.input_size, module.hidden_size = module.weight_ih.shape[1], module.weight_hh.shape[1]


ATTRIBUTES: dict[type[nn.Module], Callable[..., None]] = {
    nn.Linear: _linear,
    _ConvNd: _convolution,
    _NormBase: _norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.MultiheadAttention: _attention,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding,
    nn.PReLU: _prelu,
    nn.RNNBase: _recurrent,
    nn.RNNCellBase: _recurrent_cell,
}
