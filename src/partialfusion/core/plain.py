"""Weights that modules compute from their parameters, made plain: weight norm, standardised and masked weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm, remove_spectral_norm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm
from torch.overrides import TorchFunctionMode

from .modules import canonical_names, named_tensors, sharing_tensors

# A layer of PyTorch → the function that it calls.
LAYERS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: F.linear,
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}
HOOKS = WeightNorm, SpectralNorm, BasePruningMethod  # those that compute a weight before every call
ROUNDING = 1e-9  # relative, in double precision


def plain(model: nn.Module) -> nn.Module:
    """The model, or, where modules compute their weights, a copy that holds what they compute.

    Three kinds are known: parametrised modules (weight norm), modules with PyTorch's hooks for weight norm, spectral
    norm and masks (torch.nn.utils.prune), and layers with a forward of their own that calls PyTorch's function with a
    weight that they compute from their parameters (standardised weights). Most such weights are normed across channels:
    zeros beside them, or other channels, would change them.
    """
    known = {id(m) for m in model.modules() if is_parametrized(m) or _hooks(m) or _computes_its_weight(m)}
    if not known:
        return model
    which = [id(m) in known for m in model.modules()]
    twin = sharing_tensors(model)
    with torch.no_grad():
        for module, fold in zip(list(twin.modules()), which, strict=True):
            if fold and is_parametrized(module):
                _fold(module)
            elif fold and _hooks(module):
                for hook in _hooks(module):
                    _remove(hook, module)
            elif fold:
                _become_layer(module, *_weight_used(module))
    return twin


def holding(model: nn.Module, names: Collection[str]) -> nn.Module:
    """The model, or a copy of it, that holds a tensor of its own under every one of the names.

    Weights that are computed are plain, unless the names are those of the model; weights that modules share are apart
    where both names are given.
    """
    fitting = [m for m in (plain(model), model) if set(named_tensors(m)) <= set(names)]
    model = max(fitting, key=lambda m: len(named_tensors(m)), default=model)
    apart = [name for name, first in canonical_names(model).items() if name != first and name in names]
    if not apart:
        return model
    twin = sharing_tensors(model)
    for name in apart:
        path, _, attribute = name.rpartition(".")
        shared = twin.get_parameter(name)
        own = nn.Parameter(shared.detach(), requires_grad=shared.requires_grad)
        twin.get_submodule(path).register_parameter(attribute, own)
    return twin


def _fold(module: nn.Module) -> None:
    """Let a parametrised module hold what its parametrisations compute. Its class is shared with other modules, so
    it goes back to the class that it had instead of changing that one."""
    parametrised = module.parametrizations
    for parts in parametrised.children():  # type: ignore[union-attr]
        parts.eval()  # in training mode they would change buffers, which the twin shares with the model
    computed = {name: getattr(module, name).detach().clone() for name in parametrised}  # type: ignore[union-attr]
    trained = {name: any(p.requires_grad for p in parts.parameters()) for name, parts in parametrised.items()}  # type: ignore[operator, union-attr]
    del module.parametrizations
    module.__class__ = type(module).__bases__[0]
    for name, value in computed.items():
        module.register_parameter(name, nn.Parameter(value, requires_grad=trained[name]))


def _hooks(module: nn.Module) -> list[Any]:
    """The hooks that compute weights of a module."""
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, HOOKS)]


def _remove(hook: Any, module: nn.Module) -> None:
    """Remove a hook that computes a weight of a module, and leave the weight."""
    if isinstance(hook, WeightNorm):
        remove_weight_norm(module, hook.name)
    elif isinstance(hook, SpectralNorm):
        remove_spectral_norm(module, hook.name)
    else:  # prune.remove would write the masked numbers into the original, which the twin shares with the model
        name, masked = hook._tensor_name, hook.apply_mask(module)
        trained = module.get_parameter(f"{name}_orig").requires_grad
        for left in (name, f"{name}_orig", f"{name}_mask"):
            delattr(module, left)
        (key,) = (k for k, h in module._forward_pre_hooks.items() if h is hook)
        del module._forward_pre_hooks[key]
        module.register_parameter(name, nn.Parameter(masked.detach().clone(), requires_grad=trained))


def _layer(module: nn.Module) -> type[nn.Module] | None:
    """The layer of PyTorch that a module of a derived class is."""
    return next((layer for layer in LAYERS if isinstance(module, layer)), None)


def _computes_its_weight(module: nn.Module) -> bool:
    """Whether a layer with a forward of its own is one of PyTorch's with another weight, on random numbers and inputs
    of several sizes."""
    layer = _layer(module)
    own = layer is not None and getattr(type(module), "forward", None) is not layer.forward
    if not own or any(module.children()) or any(True for _ in module.buffers()):
        return False
    generator = torch.Generator("cpu").manual_seed(0)

    def drawn(shape: Any) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    with torch.no_grad():
        try:
            trial = copy.deepcopy(module).to_empty(device="cpu").double().eval()
            for parameter in trial.parameters():
                parameter.copy_(drawn(parameter.shape))
            weight, bias = _weight_used(trial)
            if weight is trial.weight or weight.shape != trial.weight.shape:
                return False
            other = _become_layer(copy.copy(trial), weight, bias)
            inputs = [drawn(shape) for shape in _input_shapes(module)]
            return all(_agree(trial.forward(x), other.forward(x)) for x in inputs)
        except Exception:  # code that takes no such inputs, or calls something else
            return False


def _input_shapes(module: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of inputs of a layer, of even and odd sizes."""
    if isinstance(module, nn.Linear):
        return [(2, module.in_features), (3, module.in_features)]
    assert isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    spans = [d * (k - 1) + 1 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    return [(2, module.in_channels, *(span + more for span in spans)) for more in (2, 3)]


class _Watch(TorchFunctionMode):
    """Records the weights and biases that a function is called with."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.seen: list[tuple[Tensor, Tensor | None]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is self.function:
            named = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
            self.seen.append((named["weight"], named.get("bias")))
        return func(*args, **kwargs)


def _weight_used(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """The weight and bias with which a layer calls PyTorch's function."""
    layer = _layer(module)
    assert layer is not None
    held = next(module.parameters())
    with _Watch(LAYERS[layer]) as watch:
        module.forward(torch.zeros(_input_shapes(module)[0], dtype=held.dtype, device=held.device))
    (found,) = watch.seen
    return found


def _become_layer(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Let a module be the layer of PyTorch that its class is derived from, with a weight and a bias."""
    layer = _layer(module)
    assert layer is not None
    trained = any(p.requires_grad for p in module.parameters())
    module.__class__ = layer
    module._parameters = {}
    for name, value in (("weight", weight), ("bias", bias)):
        held = None if value is None else nn.Parameter(value.detach().clone(), requires_grad=trained)
        module.register_parameter(name, held)
    return module


def _agree(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= ROUNDING * b.abs().max())
