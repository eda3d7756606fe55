"""Streams: spaces of which everything that reads them sees only what a norm makes of them.

A norm divides by the length of its input, which no rotation changes. Its scale does not commute with one, so it goes
into the weights that read the norm, and so does its shift; a layer norm also subtracts the mean over the channels,
which can be taken out of everything that writes the stream instead. Factors of what a branch adds to the stream, one
for every channel (layer scale), go into the layer that writes the branch. Then the stream may be rotated like the
channels of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..blueprint import AxisBinding, Blueprint, Space
from ..blueprint.spaces import owner
from ..core.inputs import Inputs
from ..core.modules import at_rest, inside, named_tensors
from ..core.observer import LayerCall, Observer

SAME = 1e-4  # relative difference that is rounding
LEAST = 1e-3  # of the mean scale: below it nothing can be divided by the scale of a norm


@dataclass(frozen=True, eq=False)
class Stream:
    """A space with the norms that stand between it and what reads it.

    Attributes:
        space: its name.
        readers: weight that reads it → path of the norm in front.
        biases: weight that reads it → its bias, where it has one.
        centred: the norms subtract the mean.
        factors: factors of what is added to the stream → the weight and bias that compute it.
    """

    space: str
    readers: Mapping[str, str]
    biases: Mapping[str, str | None]
    centred: bool
    factors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, blueprint: Blueprint, space: Space, inputs: Inputs) -> Stream | None:
        """The stream in a space; None where something else than norms reads it, or scales it.

        Every norm's output is scaled by random numbers, while all weights go on to compute what they did. What a weight
        then reads tells which norm is in front of it.
        """
        layers = {n.path: blueprint.norm_layers[n.path] for n in space.norms}
        whole = all(blueprint.normed[n.path] == space.width and n.index.shape[1] == 1 for n in space.norms)
        plain = all(not (layer.positions or layer.then) for layer in layers.values())
        if not layers or not whole or not plain or len({layer.centred for layer in layers.values()}) > 1:
            return None
        own = _norm_parameters(blueprint, space)
        others = [b for b in space.bindings if b.parameter not in own]
        scaled = _scaled_by_factors(named_tensors(model), [b for b in others if b.role != "reads"])
        if scaled is None or any(b.index.shape[1] != 1 for b in others):
            return None
        reading = {b.parameter: b for b in others if b.role == "reads"}
        written = {b.parameter for b in others if b.role == "writes"}
        if not reading or written & set(reading) or any(b.dim is None for b in reading.values()):
            return None
        generator = torch.Generator().manual_seed(0)
        factors = {path: 0.5 + 1.5 * torch.rand(space.width, generator=generator) for path in layers}
        seen = _Seen(model, reading)
        with at_rest(model):
            seen.run(inputs, 0)
            seen.again(inputs, {n.path: (factors[n.path], layers[n.path].dim, n.index) for n in space.norms})
        found = {}
        for weight, binding in reading.items():
            norms = [path for path in layers if seen.is_scaled(weight, binding, factors[path])]
            if len(norms) != 1:
                return None
            found[weight] = norms[0]
        return cls(space.name, found, seen.biases, next(iter(layers.values())).centred, scaled)

    def fold(self, model: nn.Module, blueprint: Blueprint) -> None:
        """Write the scales and shifts of the norms into what reads them, factors into what they scale, and take the
        mean out of what writes the stream. The model computes what it did.

        A shift that a reader cannot take, having no bias, stays with its norm.
        """
        tensors, space = named_tensors(model), blueprint[self.space]
        own = _norm_parameters(blueprint, space)
        with torch.no_grad():
            for path in dict.fromkeys(self.readers.values()):
                self._fold_norm(tensors, blueprint, space, path)
            bound = {b.parameter: b for b in space.bindings if b.role != "reads"}
            for factor, scaled in self.factors.items():
                factors, index = _rows(tensors, bound[factor])
                for name in scaled:
                    rows, places = _rows(tensors, bound[name])
                    rows[places] *= factors[index].reshape(-1, *[1] * (rows.dim() - 1))
                factors[index] = 1.0
            if self.centred:
                for binding in space.bindings:
                    if binding.role == "writes" and binding.parameter not in own:
                        rows, index = _rows(tensors, binding)
                        rows[index] -= rows[index].mean(0, keepdim=True)

    def _fold_norm(self, tensors: Mapping[str, Tensor], blueprint: Blueprint, space: Space, path: str) -> None:
        layer = blueprint.norm_layers[path]
        order = torch.from_numpy(next(n.index[:, 0] for n in space.norms if n.path == path))
        weight, bias = (None if a is None else tensors[inside(path, a)] for a in (layer.weight, layer.bias))
        scale = None if weight is None else weight.reshape(-1)[order] + layer.offset
        shift = None if bias is None else bias.reshape(-1)[order].clone()
        readers = [name for name, norm in self.readers.items() if norm == path]
        bindings = {name: _reading(space, name) for name in readers}
        taken = shift is not None and all(_takes(tensors, name, self.biases[name]) for name in readers)
        for name, binding in bindings.items():
            tensor, index = tensors[name], torch.from_numpy(binding.index[:, 0])
            rows = tensor.movedim(binding.axis, 0)
            if taken and shift is not None:
                tensors[str(self.biases[name])].add_(torch.einsum("uo,u->o", rows[index], shift))
            if scale is not None:
                rows[index] *= scale.view(-1, *[1] * (tensor.dim() - 1))
        if bias is not None and shift is not None:
            left = torch.zeros_like(shift) if taken else shift / (1.0 if scale is None else scale)
            bias.view(-1)[order] = left
        if weight is not None:
            weight.fill_(1.0 - layer.offset)

    def divisible(self, model: nn.Module, blueprint: Blueprint) -> bool:
        """Whether what the norms of a model shift can be kept apart from what they scale."""
        tensors, space = named_tensors(model), blueprint[self.space]
        for binding in space.norms:
            layer = blueprint.norm_layers[binding.path]
            if layer.weight is None or layer.bias is None:
                continue
            scale = (tensors[inside(binding.path, layer.weight)] + layer.offset).abs()
            takes = all(_takes(tensors, w, self.biases[w]) for w, p in self.readers.items() if p == binding.path)
            if not takes and bool(scale.min() < LEAST * scale.mean()):
                return False
        return True


def _norm_parameters(blueprint: Blueprint, space: Space) -> set[str]:
    """The scales and shifts of the norms that run across a space."""
    found = set()
    for binding in space.norms:
        layer = blueprint.norm_layers[binding.path]
        found |= {inside(binding.path, a) for a in (layer.weight, layer.bias) if a is not None}
    return found


def _scaled_by_factors(
    tensors: Mapping[str, Tensor], bindings: Sequence[AxisBinding]
) -> dict[str, tuple[str, ...]] | None:
    """Factors → the weight and bias that compute what they scale: those of the last layer before them in the order of
    computation, which is only a guess until it was tried; None where there is no such layer, or what scales the
    channels is more than a number for each."""
    found: dict[str, tuple[str, ...]] = {}
    layers: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for binding in bindings:
        module = owner(binding.parameter)
        if binding.role == "writes":
            layers[module] = (*layers.pop(module, ()), binding.parameter)
            continue
        before = next(reversed(layers), None)
        if before is None or before in taken or tensors[binding.parameter].numel() != len(binding.index):
            return None
        taken.add(before)
        found[binding.parameter] = layers[before]
    return found


def _rows(tensors: Mapping[str, Tensor], binding: AxisBinding) -> tuple[Tensor, Tensor]:
    """A parameter with the axis of a binding first, and where on it the channels sit."""
    tensor = tensors[binding.parameter]
    return tensor.movedim(binding.axis, 0), torch.from_numpy(binding.index[:, 0]).to(tensor.device)


def _reading(space: Space, weight: str) -> AxisBinding:
    return next(b for b in space.bindings if b.parameter == weight and b.role == "reads")


def _takes(tensors: Mapping[str, Tensor], weight: str, bias: str | None) -> bool:
    """Whether the bias of a weight can take what the weight makes of a constant."""
    return bias is not None and tensors[weight].dim() == 2 and tensors[bias].dim() == 1


class _Seen(Observer):
    """What some weights read in one run, and in a second one in which norms scale otherwise while all weights compute
    what they did in the first."""

    def __init__(self, model: nn.Module, weights: Mapping[str, AxisBinding]) -> None:
        self.weights = weights
        self.biases: dict[str, str | None] = {}
        self.first: dict[tuple[str, int], Tensor] = {}
        self.second: dict[tuple[str, int], Tensor] = {}
        self.results: dict[tuple[str, int], Tensor] = {}
        self.repeats = False
        super().__init__(model)

    def again(self, batch: Inputs, scaled: Mapping[str, tuple[Tensor, int, Any]]) -> None:
        """The second run: path of a norm → factors of its channels, their dimension and their places."""
        modules = dict(self.model.named_modules())
        hooks = [modules[path].register_forward_hook(_scaling(*how)) for path, how in scaled.items()]
        self.repeats = True
        try:
            self.run(batch, 0)
        finally:
            self.repeats = False
            for hook in hooks:
                hook.remove()

    def before(self, call: LayerCall) -> None:
        if call.name in self.weights:
            self.biases[call.name] = self.bias(call)
            (self.second if self.repeats else self.first)[call.name, call.use] = call.x.detach().clone()

    def compute(self, call: LayerCall, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.repeats:
            return self.results[call.name, call.use].clone()
        return super().compute(call, function, args, kwargs)

    def after(self, call: LayerCall, result: Tensor) -> None:
        self.results[call.name, call.use] = result.detach().clone()

    def is_scaled(self, weight: str, binding: AxisBinding, factors: Tensor) -> bool:
        """Whether all that a weight read in the second run is what it read in the first, by these factors."""
        uses = [key for key in self.first if key[0] == weight]
        return bool(uses) and all(self._scaled(key, binding, factors) for key in uses)

    def _scaled(self, key: tuple[str, int], binding: AxisBinding, factors: Tensor) -> bool:
        assert binding.dim is not None
        expected = _by(self.first[key], factors, binding.dim, binding.index)
        gap = (self.second[key] - expected).abs().max()
        return bool(gap <= SAME * expected.abs().max())


def _scaling(factors: Tensor, dim: int, index: Any) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def scale(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return _by(output, factors, dim, index)

    return scale


def _by(values: Tensor, factors: Tensor, dim: int, index: Any) -> Tensor:
    """Values times factors along the channels."""
    along = torch.ones(values.shape[dim], dtype=values.dtype, device=values.device)
    along[torch.from_numpy(index[:, 0]).to(values.device)] = factors.to(values)
    return values * along.view([-1, *[1] * (-dim - 1)])
