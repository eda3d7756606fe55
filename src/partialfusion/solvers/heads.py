"""Heads of several models: which of them correspond, and how each is rotated into its partners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.arrays import Floats, Ints
from .assignment import assignment
from .directions import GAIN, SWEEPS, within_head

# Two models → space → (heads × heads × c × c) inner products of the channels of their heads, each with each, relative
# to what rotations could make of them at most.
Alike = Callable[[int, int], Mapping[str, Floats]]


@dataclass(frozen=True, eq=False)
class Placed:
    """The heads of one model in a row of places that all models share.

    Attributes:
        order: (places,) the head at every place.
        rotations: space → (places × c × c) how the head at every place is rotated.
        alike: how like the heads of the other models it makes them.
    """

    order: Ints
    rotations: Mapping[str, Floats]
    alike: float = 0.0


def pair_heads(alike: Alike, models: int, planes: Mapping[str, Ints]) -> list[Placed]:
    """Places and rotations for the heads of several models.

    Every model is first paired with the last one. Then, one after the other, each is paired anew and rotated to where
    it fits all others best, which is an assignment whose costs are Procrustes problems, until nothing is gained: the
    sum over all pairs of models never falls. Heads at one place are partners in whatever two models one compares.

    Args:
        alike: inner products of the channels of two models' heads.
        models: how many models there are, all with the same number of heads of the same size.
        planes: spaces whose heads may be rotated in pairs of channels only → (c / 2 × 2) these pairs.
    """
    last = models - 1
    inner = alike(last, last)
    count = len(next(iter(inner.values())))
    own = {s: np.broadcast_to(np.eye(x.shape[-1]), (count, *x.shape[2:])) for s, x in inner.items()}
    found = {last: Placed(np.arange(count), own)}
    for m in range(last):
        found[m] = _placed(alike, m, {last: found[last]}, planes)
    before = -np.inf
    for _ in range(SWEEPS):
        total = 0.0
        for m in range(models):
            found[m] = _placed(alike, m, {j: p for j, p in found.items() if j != m}, planes)
            total += found[m].alike
        if total <= before + GAIN * abs(before):
            break
        before = total
    return [found[m] for m in range(models)]


def rotations_into_last(placed: Sequence[Placed]) -> list[dict[str, Floats]]:
    """For each model but the last: space → (heads × c × c) the rotation of every head into its partner in the last."""
    *others, last = placed
    found = []
    for one in others:
        turns = {s: np.empty_like(r) for s, r in one.rotations.items()}
        for s, r in one.rotations.items():
            turns[s][one.order] = r @ last.rotations[s].swapaxes(1, 2)
        found.append(turns)
    return found


def _placed(alike: Alike, m: int, others: Mapping[int, Placed], planes: Mapping[str, Ints]) -> Placed:
    """The places and rotations with which the heads of a model fit those of others best."""
    towards: dict[str, Floats] = {}
    for j, other in others.items():
        for s, inner in alike(m, j).items():
            towards[s] = towards.get(s, 0.0) + inner[:, other.order] @ other.rotations[s]
    value = np.sum([_most(t, planes.get(s)) for s, t in towards.items()], axis=0)
    heads, places = assignment(-value)
    order = np.empty(len(heads), np.int64)
    order[places] = heads
    best = order, np.arange(len(order))
    turned = {s: np.stack([within_head(block, planes.get(s)) for block in t[best]]) for s, t in towards.items()}
    return Placed(order, turned, float(value[best].sum()))


def _most(towards: Floats, planes: Ints | None) -> Floats:
    """(heads × places) the largest inner product that a rotation of every head can have with what is wanted there."""
    if planes is None:
        return np.asarray(np.linalg.svd(towards, compute_uv=False).sum(-1))
    first, second = planes.T
    along = towards[..., first, first] + towards[..., second, second]
    around = towards[..., first, second] - towards[..., second, first]
    return np.asarray(np.hypot(along, around).sum(-1))
