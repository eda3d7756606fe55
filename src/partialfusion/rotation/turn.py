"""Turning the channels of a space: new channels are orthonormal combinations of the old ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..blueprint import Blueprint
from ..core.modules import inside, named_tensors


def turn(model: nn.Module, blueprint: Blueprint, rotations: Mapping[str, Tensor]) -> None:
    """Rotate spaces of a model, in place.

    What writes channel i becomes a part of every new channel j, with weight R[i, j], and what reads it likewise; as R
    is orthogonal, what is read stays what it was.

    Args:
        model: the model.
        blueprint: its blueprint; the scales of norms across the spaces must be one, see `Stream.fold`.
        rotations: space → (width × width) R, orthogonal.
    """
    tensors = named_tensors(model)
    with torch.no_grad():
        for name, rotation in rotations.items():
            space = blueprint[name]
            scales = {inside(n.path, a) for n in space.norms if (a := blueprint.norm_layers[n.path].weight) is not None}
            done = set()
            for binding in space.bindings:
                place = binding.parameter, binding.axis, binding.index.tobytes()
                if binding.parameter in scales or place in done:
                    continue
                done.add(place)
                tensor = tensors[binding.parameter]
                rows = tensor.movedim(binding.axis, 0)
                for slot in range(binding.index.shape[1]):
                    index = torch.from_numpy(binding.index[:, slot]).to(tensor.device)
                    old = rows[index].to(torch.promote_types(tensor.dtype, torch.float64))
                    rows[index] = torch.einsum("ij,i...->j...", rotation.to(old), old).to(tensor.dtype)
