"""Peers that merge networks tuned from one base, by arithmetic on their weights: task arithmetic and TIES.

Both add a multiple of a common task vector to the base. A task vector is what tuning changed: θ − base. They leave
tensors that are not floating-point as they are in the base.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

State = Mapping[str, Tensor]


def task_arithmetic(base: State, tuned: Sequence[State]) -> dict[str, Tensor]:
    """The sum of the task vectors (Ilharco et al., arXiv 2212.04089)."""
    return {name: torch.stack(vectors).sum(0) for name, vectors in _task_vectors(base, tuned).items()}


def ties(base: State, tuned: Sequence[State], *, density: float = 0.2) -> dict[str, Tensor]:
    """The merged task vector of TIES (Yadav et al., arXiv 2306.01708).

    Of every task vector, the entries with the largest magnitudes are kept, a fraction `density` of all its entries.
    The sign of an entry is that of the sum; the entries with this sign are averaged, and the others left out.
    """
    vectors = _task_vectors(base, tuned)
    flat = torch.stack([torch.cat([vectors[name][k].flatten() for name in vectors]) for k in range(len(tuned))])
    kept = torch.stack([_trimmed(vector, density) for vector in flat])
    agrees = kept * kept.sum(0).sign() > 0
    merged = (kept * agrees).sum(0) / agrees.sum(0).clamp(min=1)
    sizes = [vectors[name][0].numel() for name in vectors]
    return {name: part.view_as(base[name]) for name, part in zip(vectors, merged.split(sizes), strict=True)}


def added(model: nn.Module, vector: State, factor: float) -> nn.Module:
    """A copy of the base with a multiple of a task vector added."""
    result = copy.deepcopy(model)
    state = result.state_dict()
    result.load_state_dict(state | {name: state[name] + factor * part for name, part in vector.items()})
    return result


def _task_vectors(base: State, tuned: Sequence[State]) -> dict[str, list[Tensor]]:
    """name → the task vector of every network."""
    return {name: [state[name] - t for state in tuned] for name, t in base.items() if t.is_floating_point()}


def _trimmed(vector: Tensor, density: float) -> Tensor:
    """The vector, with zeros for all but its largest entries."""
    largest = vector.abs().topk(max(1, round(density * vector.numel()))).indices
    return torch.zeros_like(vector).index_copy(0, largest, vector[largest])
