"""Rotations in files: tensors beside those of the model, and what the header says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..kernels import Plan
from ..rotation import Rotations
from .digest import digest

ORTHOGONAL = 1e-3  # a product with its transpose may differ so much from the identity


def named(rotations: Rotations | None) -> dict[str, Tensor]:
    """Name in the file → R, of every model and space; no parameter of a module has such a name."""
    turns = () if rotations is None else rotations.turns
    return {_name(k, space): r for k, found in enumerate(turns) for space, r in found.items()}


def to_record(rotations: Rotations) -> dict[str, Any]:
    """What the header says: which spaces of which model are rotated, and the hash of the tensors."""
    return {
        "spaces": [list(turns) for turns in rotations.turns],
        "uncentred": rotations.uncentred,
        "left": list(rotations.left),
        "sha256": digest(named(rotations).items()),
    }


def from_record(record: Mapping[str, Any], file: Any, plan: Plan) -> Rotations:
    """The rotations in an open file; raises KeyError, TypeError or ValueError where they make no sense."""
    turns = tuple({str(s): file.get_tensor(_name(k, s)) for s in spaces} for k, spaces in enumerate(record["spaces"]))
    if len(turns) != plan.models:
        raise ValueError(f"rotations of {len(turns)} models, not of {plan.models}")
    for k, found in enumerate(turns):
        for space, rotation in found.items():
            width = plan[space].pairs[k].sources
            if not _is_rotation(rotation, width):
                raise ValueError(f"{space} of model {k} has no rotation of {width} channels")
    rotations = Rotations(turns, bool(record["uncentred"]), tuple(str(s) for s in record["left"]))
    if digest(named(rotations).items()) != record["sha256"]:
        raise ValueError("its rotations are not those that were written")
    return rotations


def _name(model: int, space: str) -> str:
    return f"rotations/{model}/{space}"


def _is_rotation(found: Tensor, width: int) -> bool:
    """Whether a tensor is orthogonal: (width × width), or (heads × channels × channels), where the width may count
    heads."""
    if found.dtype not in (torch.float32, torch.float64) or found.dim() not in (2, 3):
        return False
    *heads, n, m = found.shape
    if n != m or width not in ([heads[0], heads[0] * n] if heads else [n]):
        return False
    return bool(((found @ found.mT) - torch.eye(n, dtype=found.dtype)).abs().max() < ORTHOGONAL)
