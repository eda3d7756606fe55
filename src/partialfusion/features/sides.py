"""One model of a comparison: its blueprint and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..blueprint import Blueprint
from ..kernels import KernelPair
from ..kernels.transform import axis_map


@dataclass(frozen=True)
class Side:
    """A model as features see it: which axis is which, and the numbers."""

    blueprint: Blueprint
    tensors: Mapping[str, Tensor]

    def number(self, name: str) -> Tensor:
        """A parameter in at least single precision."""
        tensor = self.tensors[name].detach()
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

    def project(self, name: str, kernels: Mapping[str, KernelPair], keep: int | None = None) -> Tensor:
        """A parameter with every axis but `keep` mapped into common coordinates.

        Args:
            name: the parameter.
            kernels: space → the model's kernel pair into the coordinates of that space.
            keep: the axis that stays as it is.
        """
        tensor = self.number(name)
        for axis, bound in self.blueprint.axes[name].items():
            if axis == keep:
                continue
            parts, offset = [], 0
            for space, binding in bound:
                pair = kernels[space.name]
                pattern = pair.reading() if binding.role == "reads" else pair.writing()
                count = binding.index.shape[1]
                new = offset + np.arange(pair.targets * count).reshape(pair.targets, count)
                offset += new.size
                parts.append((pattern, binding.index, new))
            tensor = axis_map(parts, tensor.shape[axis])(tensor, axis)
        return tensor
