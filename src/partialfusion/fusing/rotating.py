"""Models in other frames: what they compute stays, and their directions correspond better than their channels do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Blueprint
from ..core.arrays import Floats
from ..features import Activations, Need
from ..features.moments import Moments
from ..features.readers import BACKGROUND
from ..rotation import Rotatable, Rotations, head_channels
from ..solvers import assignment
from ..solvers.directions import Cross, directions, procrustes, similarity
from .sources import Sources

APART = 1.0  # by how much fusing directions that do not correspond costs more than any that do


def rotated(sources: Sources, rotatable: Rotatable, *, keep_norms: bool, seed: int) -> tuple[Sources, Rotations]:
    """The models rotated so that their directions correspond, and how.

    Args:
        sources: the models.
        rotatable: what may be rotated.
        keep_norms: keep layer norms as they are: rotate all models into the channels of the last one, which only
            allows to fuse streams as wholes. Otherwise every direction is a channel, the most alike first, and norms do
            not subtract the mean any more, which is zero then.
        seed: random seed of noise, which stands in for data and counts a little beside it.
    """
    blueprints = sources.blueprints
    folded = [rotatable.folded(m, b, uncentred=not keep_norms) for m, b in zip(sources.models, blueprints, strict=True)]
    measured = _Measured.on(sources, folded, rotatable.spaces, seed)
    turns: list[dict[str, Tensor]] = [{} for _ in folded]
    paired: dict[str, list[Floats]] = {}
    for name in rotatable.directions:
        centred = name in rotatable.streams and rotatable.streams[name].centred
        frames, costs = _frames(measured.cross(name), sources.widths[name], centred=centred)
        if keep_norms:
            *others, last = frames
            frames = [frame @ last.T for frame in others]
        else:
            paired[name] = costs
        for m, frame in enumerate(frames):
            turns[m][name] = torch.from_numpy(frame)
    for spaces in rotatable.heads.values():
        for m in range(len(folded) - 1):
            turns[m] |= _heads(measured, spaces, blueprints, m)
    precision = _precision(folded)
    found = tuple({s: r.to(precision) for s, r in turn.items()} for turn in turns)
    rotations = Rotations(found, uncentred=not keep_norms, left=rotatable.left)
    return sources.turned(folded, rotatable.turned(folded, blueprints, rotations), paired), rotations


def _precision(models: Sequence[nn.Module]) -> torch.dtype:
    """That of rotations: single, so that files can hold them exactly, unless the models have more."""
    double = any(p.dtype == torch.float64 for m in models for p in m.parameters())
    return torch.float64 if double else torch.float32


@dataclass(frozen=True, eq=False)
class _Measured:
    """Covariances of the channels of all models in some spaces, on the data and a little on noise."""

    moments: Mapping[str, Sequence[Moments]]
    noise: Mapping[str, Sequence[Moments]]

    @classmethod
    def on(cls, sources: Sources, models: Sequence[nn.Module], spaces: Sequence[str], seed: int) -> _Measured:
        need = Need("post", within=True)
        folded = sources.turned(models)
        if sources.batches is None:
            return cls(_places(folded.noise(need, seed), spaces), {})
        found = Activations.record(models, sources.blueprints, sources.batches, spaces, {need})
        noise = folded.background(need, seed)
        return cls(_places(found, spaces), {} if noise is None else _places(noise, spaces))

    def cross(self, space: str) -> Cross:
        known: dict[tuple[int, int], Floats] = {}
        seen, background = self.moments[space], self.noise.get(space, ())
        size = sum(float(m.union_variance().sum()) for m in seen)
        other = sum(float(m.union_variance().sum()) for m in background)
        share = BACKGROUND * size / other if other > 0 and np.isfinite(other) else 0.0

        def cross(i: int, j: int) -> Floats:
            if (i, j) not in known:
                parts = [m.covariance(i, j) for m in seen]
                parts += [share * m.covariance(i, j) for m in background] if share else []
                known[i, j] = torch.stack(parts).sum(0).cpu().numpy()
            return known[i, j]

        return cross


def _places(activations: Activations, spaces: Sequence[str]) -> dict[str, list[Moments]]:
    """Space → its moments where weights read it, or where they write it if none do; norms see more than they read."""
    found = activations.union("post")
    return {s: [m for place, m in found[s].items() if place[2] != "normed"] for s in spaces}


def _frames(cross: Cross, widths: Sequence[int], *, centred: bool) -> tuple[list[Floats], list[Floats]]:
    """A frame for each model, and for each but the last (n × m) what fusing its directions with the last one's costs.

    In a stream without mean one direction is empty: it comes first, and all models have it in common.
    """
    bases = [_without_mean(n) if centred else np.eye(n) for n in widths]
    inner = directions(lambda i, j: bases[i].T @ cross(i, j) @ bases[j], [b.shape[1] for b in bases])
    frames, costs = [], []
    for basis, rotation in zip(bases, inner.rotations, strict=True):
        n = len(basis)
        empty = np.full((n, n - basis.shape[1]), n**-0.5)
        frames.append(np.concatenate([empty, basis @ rotation], 1))
    for m, found in enumerate(inner.differences):
        cost = np.full((widths[m], widths[-1]), found.max(initial=0.0) + APART)
        corresponding = np.concatenate([np.zeros(int(centred)), found])
        cost[np.arange(len(corresponding)), np.arange(len(corresponding))] = corresponding
        costs.append(cost)
    return frames, costs


def _without_mean(n: int) -> Floats:
    """(n × n−1) orthonormal vectors that sum to zero."""
    return np.ascontiguousarray(np.linalg.qr(np.concatenate([np.ones((n, 1)), np.eye(n)[:, :-1]], 1))[0][:, 1:])


def _heads(measured: _Measured, spaces: Sequence[str], blueprints: Sequence[Blueprint], m: int) -> dict[str, Tensor]:
    """Space → the rotation that brings every head of a model into the channels of the one of the last model that is
    most alike, over all spaces of the bundle."""
    last = len(blueprints) - 1
    ours, theirs = ({s: head_channels(blueprints[k][s]) for s in spaces} for k in (m, last))
    crosses = {s: (measured.cross(s)(m, last), measured.cross(s)(m, m), measured.cross(s)(last, last)) for s in spaces}
    alike = np.zeros((len(ours[spaces[0]]), len(theirs[spaces[0]])))
    for s, (cross, own, other) in crosses.items():
        for i, a in enumerate(ours[s]):
            for j, b in enumerate(theirs[s]):
                alike[i, j] += similarity(cross[np.ix_(a, b)], own[a, a].sum(), other[b, b].sum())
    found = {}
    for s, (cross, _, _) in crosses.items():
        rotation = np.stack([np.eye(len(a)) for a in ours[s]])
        for i, j in zip(*assignment(-alike), strict=True):
            a, b = ours[s][i], theirs[s][j]
            if len(a) == len(b):
                rotation[i] = procrustes(cross[np.ix_(a, b)])
        found[s] = torch.from_numpy(rotation)
    return found
