"""A model with its blueprint: which axis of which parameter carries which channels, and the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, Space
from ..core.blocks import Part, taken
from ..core.modules import named_tensors
from ..kernels import KernelPair
from ..kernels.transform import AxisMap, axis_map


@dataclass(frozen=True)
class TracedModel:
    """The parameters and buffers of a model, and the spaces that they meet.

    All that is ever mapped from one model's channels to others goes through `axis_map`: parameters into the fused
    model (surgery), parameters into a common frame (features), activations into the fused model's channels (refit).
    """

    kept: ClassVar[int] = 2**30  # bytes of what is computed of it that may be kept to save time

    blueprint: Blueprint
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, blueprint: Blueprint) -> TracedModel:
        return cls(blueprint, named_tensors(model))

    def number(self, name: str, part: Part | None = None) -> Tensor:
        """A parameter, or a part of it, in at least single precision."""
        tensor = taken(self.tensors[name].detach(), part)
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

    def written_axis(self, name: str) -> int | None:
        """The axis of a parameter that is mapped by write kernels; all others are mapped by read kernels.

        It is the first one that writes or scales a space: over several, the shares of the models would count twice.
        """
        axes = self.blueprint.axes.get(name, {})
        return next((axis for axis, bound in axes.items() if any(b.role != "reads" for _, b in bound)), None)

    def axis_map(
        self,
        name: str,
        axis: int,
        kernels: Mapping[str, KernelPair],
        *,
        layout: Mapping[str, Space] | None = None,
        length: int | None = None,
        share: float = 1.0,
    ) -> AxisMap:
        """How the positions on one axis of a parameter enter those of the target.

        Args:
            name: the parameter.
            axis: its axis.
            kernels: space → the kernel pair of this model.
            layout: space → where its channels sit in the target; without it they stand one after the other.
            length: length of the axis in the target; without it, what its channels and other positions need.
            share: the weight of positions that belong to no channel, on the written axis and where none do.
        """
        bound = self.blueprint.axes.get(name, {}).get(axis, ())
        writes = not bound or axis == self.written_axis(name)
        parts, offset = [], 0
        for space, binding in bound:
            pair, copies = kernels[space.name], binding.index.shape[1]
            if layout is None:
                target = offset + np.arange(pair.targets * copies).reshape(pair.targets, copies)
                offset += target.size
            else:
                target = layout[space.name].index(name, axis)
            parts.append((pair.writing() if writes else pair.reading(name), binding.index, target))
        return axis_map(parts, self.tensors[name].shape[axis], length, fixed_weight=share if writes else 1.0)

    def reading(self, name: str, space: str, values: Tensor) -> Tensor:
        """(outputs,) what a weight computes where all channels of a space have these (units × slots) values everywhere,
        and all others are zero."""
        weight = self.number(name)
        binding = next(b for b in self.blueprint[space].bindings if b.parameter == name and b.role == "reads")
        written = self.written_axis(name)
        assert written is not None
        assert written != binding.axis
        taken = weight.movedim((binding.axis, written), (0, 1))[torch.from_numpy(binding.index).to(weight.device)]
        return torch.einsum("uso,us->o", taken.flatten(3).sum(3) if taken.dim() > 3 else taken, values.to(weight))

    def mapped(
        self,
        name: str,
        kernels: Mapping[str, KernelPair],
        *,
        layout: Mapping[str, Space] | None = None,
        shape: tuple[int, ...] | None = None,
        keep: int | None = None,
        share: float = 1.0,
        shift: Tensor | None = None,
        part: Part | None = None,
    ) -> Tensor:
        """A parameter with its axes mapped: one term of W' = Σ_m write_m · W_m · read_m.

        Args:
            name: the parameter.
            kernels: space → the kernel pair of this model.
            layout: space → where its channels sit in the target; without it they stand one after the other.
            shape: the shape in the target, where the layout is given.
            keep: an axis that stays as it is.
            share: the share of this model in what belongs to no channel.
            shift: what is added to the parameter first.
            part: positions of the target that are wanted, on one axis; no others are computed, nor what only they need
                read.
        """
        maps = {}
        for axis in self.blueprint.axes.get(name, {}):
            if axis != keep:
                length = None if shape is None else shape[axis]
                maps[axis] = self.axis_map(name, axis, kernels, layout=layout, length=length, share=share)
        if part is not None and part[0] in maps:
            needed, maps[part[0]] = maps[part[0]].part(part[1])
            part = part[0], needed
        tensor = self.number(name, part)
        if shift is not None:
            assert part is None, "constants belong to whole parameters"
            tensor = tensor + shift.to(tensor)
        for axis, found in maps.items():
            tensor = found(tensor, axis)
        return tensor if share == 1.0 or self.written_axis(name) is not None else tensor * share
