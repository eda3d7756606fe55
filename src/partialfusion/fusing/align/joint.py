"""Joint alignment by rotations: each space by what its channels do and by its weights, the others as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from ...blueprint import Blueprint, Space
from ...core.arrays import Floats, Ints
from ...features import TracedModel, WeightCosts
from ...features.weights import Couplings
from ...kernels import Coupling
from ...rotation import head_channels, turn
from ...solvers.directions import procrustes, within_head

SWEEPS = 20  # at most
LEAST_GAIN = 1e-3  # of the objective, which is at most one for each space and kind of similarity
WEIGHTS = 1.0  # what the similarity of weights counts beside that of activations


def descend(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    couplings: Couplings,
    measured: Mapping[str, Floats],
    centred: frozenset[str] = frozenset(),
    pairs: Mapping[str, Ints] | None = None,
) -> tuple[dict[str, Floats], list[float]]:
    """Rotate space after space of a model towards the last one, the others standing still, until nothing is gained.

    Every step solves its Procrustes problem exactly. A weight on two spaces counts in each of them relative to what the
    weights of that space can be alike at most, so one step may take a little from what another gained: the descent ends
    there.

    Args:
        models: our model, which is rotated in place, and the last one.
        blueprints: theirs.
        couplings: what is matched with what, in all spaces; the channels of rotated ones stay matched.
        measured: space to rotate → (n × n) covariances of our channels with those of the last model, relative to the
            largest sum that rotations could give them.
        centred: those of these spaces whose rotations must keep the mean over the channels.
        pairs: those whose heads may be rotated in pairs of channels only → (channels of a head / 2 × 2) these pairs.

    Returns:
        Space → (n × n) how it was rotated, and the similarity after every sweep.
    """
    turns = {s: np.eye(len(c)) for s, c in measured.items()}
    history: list[float] = []
    for _ in range(SWEEPS):
        total = 0.0
        for space in measured:
            ours, theirs = map(TracedModel.of, models, blueprints)
            weights = WeightCosts(ours, theirs, dict.fromkeys(couplings, 1.0))
            alike = turns[space].T @ measured[space] + WEIGHTS * weights.products(space, couplings)
            alike = _matched(alike, couplings[space])
            planes = None if pairs is None else pairs.get(space)
            step = _step(alike, blueprints[0][space], planes, centred=space in centred)
            turn(models[0], blueprints[0], {space: torch.from_numpy(step)})
            turns[space] = turns[space] @ step
            total += float((step * alike).sum())
        history.append(total)
        if len(history) > 1 and total - history[-2] < LEAST_GAIN:
            break
    return turns, history


def _step(alike: Floats, space: Space, pairs: Ints | None, *, centred: bool) -> Floats:
    """(n × n) the rotation of our channels that brings each nearest to the one that it is matched with."""
    if space.blocks is None:
        return nearest(alike, centred=centred)
    blocks = [within_head(alike[np.ix_(channels, channels)], pairs) for channels in head_channels(space)]
    return block_diagonal(np.stack(blocks), space)


def nearest(alike: Floats, *, centred: bool) -> Floats:
    """(n × n) the rotation with the largest inner product with a matrix, of those that keep the mean if it says so."""
    if not centred:
        return procrustes(alike)
    basis = without_mean(len(alike))
    return basis @ procrustes(basis.T @ alike @ basis) @ basis.T + 1 / len(alike)


def block_diagonal(blocks: Floats, space: Space) -> Floats:
    """(n × n) of rotations within heads, (heads × channels × channels)."""
    found = np.zeros((space.width, space.width))
    for channels, block in zip(head_channels(space), blocks, strict=True):
        found[np.ix_(channels, channels)] = block
    return found


def _matched(alike: Floats, coupling: Coupling) -> Floats:
    """The columns in the order of our channels that they are matched with."""
    order = np.empty(len(alike), np.int64)
    order[coupling.rows] = coupling.cols
    return alike[:, order]


def without_mean(n: int) -> Floats:
    """(n × n−1) orthonormal vectors that sum to zero."""
    return np.ascontiguousarray(np.linalg.qr(np.concatenate([np.ones((n, 1)), np.eye(n)[:, :-1]], 1))[0][:, 1:])
