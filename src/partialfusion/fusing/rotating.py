"""Models in other frames: what they compute stays, and their directions correspond better than their channels do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, Space
from ..core.arrays import Floats, Ints
from ..features import Activations, Need
from ..features.moments import Moments
from ..features.readers import BACKGROUND
from ..rotation import Rotatable, Rotations, head_channels
from ..solvers import assignment
from ..solvers.directions import Cross, alike_first, directions, similarity, within_head
from ..solvers.heads import pair_heads, rotations_into_last
from .align import Aligner
from .align.joint import block_diagonal, descend, nearest, without_mean
from .options import Recipe
from .sources import Sources

MEANS = 1e-3  # what means count beside covariances
APART = 1.0  # by how much fusing directions that do not correspond costs more than any that do


def rotated(sources: Sources, rotatable: Rotatable, recipe: Recipe, *, keep_norms: bool) -> tuple[Sources, Rotations]:
    """The models rotated so that their directions correspond, and how.

    Two models of equal widths are aligned jointly where the recipe asks for a fixed point; others in one pass.

    Args:
        sources: the models.
        rotatable: what may be rotated.
        recipe: align, and the random seed of noise, which stands in for data and counts a little beside it.
        keep_norms: keep layer norms as they are: rotate all models into the channels of the last one, which only
            allows to fuse streams as wholes. Otherwise every direction is a channel, the most alike first, and norms do
            not subtract the mean any more, which is zero then.
    """
    blueprints, last = sources.blueprints, len(sources.models) - 1

    def folded(m: int) -> nn.Module:
        return rotatable.folded(sources.models[m], blueprints[m], uncentred=not keep_norms)

    models = [folded(m) for m in range(last + 1)]
    opened = [rotatable.opened(b) for b in blueprints]
    measured = _Measured.on(sources.turned(models, opened), rotatable.spaces, recipe.seed)
    heads: list[dict[str, Floats]] = [{} for _ in range(last)]
    for spaces in rotatable.heads.values():
        for m, turns in enumerate(_heads(measured, spaces, opened, _pairs(rotatable))):
            heads[m] |= turns
    jointly: dict[str, Floats] = {}
    if recipe.align == "fixed-point" and last == 1 and all(len(set(sources.widths[s])) == 1 for s in rotatable.spaces):
        jointly = _jointly(sources, models, rotatable, recipe, measured, heads[0], uncentred=not keep_norms)
        heads = [{s: _blocks(jointly[s], opened[0], s) for s in heads[0]}]
        models[0] = folded(0)
    turned: list[dict[str, Floats]] = [*heads, {}]
    paired: dict[str, list[Floats]] = {}
    for name in rotatable.directions:
        centred, into = _centred(rotatable, name), jointly.get(name)
        frames, costs = _frames(measured.cross(name), sources.widths[name], into, centred=centred)
        if keep_norms:
            *others, reference = frames
            frames = [frame @ reference.T for frame in others]
        else:
            paired[name] = costs
        for m, frame in enumerate(frames):
            turned[m][name] = frame
    precision = _precision(models)
    found = tuple({s: torch.from_numpy(r).to(precision) for s, r in turns.items()} for turns in turned)
    rotations = Rotations(found, uncentred=not keep_norms, left=rotatable.left)
    return sources.turned(models, rotatable.turned(models, blueprints, rotations), paired), rotations


def _jointly(
    sources: Sources,
    models: list[nn.Module],
    rotatable: Rotatable,
    recipe: Recipe,
    measured: _Measured,
    heads: Mapping[str, Floats],
    *,
    uncentred: bool,
) -> dict[str, Floats]:
    """Space → (n × n) how the first of two models is rotated into the channels of the second: first by what is
    measured, then by coordinate descent on what is measured and the weights, everything else matched as it is then.

    The first model is rotated in place.
    """
    opened = rotatable.opened(sources.blueprints[0])
    start: dict[str, Floats] = {s: block_diagonal(r, opened[s]) for s, r in heads.items()}
    for name in rotatable.directions:
        start[name] = nearest(measured.cross(name)(0, 1), centred=_centred(rotatable, name))
    turns = {s: torch.from_numpy(heads.get(s, r)) for s, r in start.items()}
    blueprints = rotatable.turned(models, sources.blueprints, Rotations((turns, {}), uncentred))
    paired = {s: [1.0 - np.eye(sources.widths[s][0])] for s in rotatable.directions}
    # Before the activation function, where channels that are silent behind it still tell which is which.
    aligner = Aligner(sources.turned(models, blueprints, paired), replace(recipe, site="pre"))
    (alignment,) = aligner.align(dict.fromkeys(sources.names("elastic"), 0.0))
    alike = {s: r.T @ measured.relative(s) for s, r in start.items()}
    centred = frozenset(s for s in rotatable.directions if _centred(rotatable, s))
    couplings = dict(alignment.couplings)
    for space, pairing in rotatable.rotary.items():
        couplings[space] = couplings[space].within(pairing.size)
    steps, _ = descend(models, [rotatable.opened(b) for b in blueprints], couplings, alike, centred, _pairs(rotatable))
    return {s: start[s] @ steps[s] for s in start}


def _centred(rotatable: Rotatable, space: str) -> bool:
    return space in rotatable.streams and rotatable.streams[space].centred


def _pairs(rotatable: Rotatable) -> dict[str, Ints]:
    return {space: pairing.pairs for space, pairing in rotatable.rotary.items()}


def _blocks(rotation: Floats, blueprint: Blueprint, space: str) -> Floats:
    """(heads × channels × channels) of a rotation within heads."""
    return np.stack([rotation[np.ix_(a, a)] for a in head_channels(blueprint[space])])


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
    def on(cls, sources: Sources, spaces: Sequence[str], seed: int) -> _Measured:
        need = Need("post", within=True)
        if sources.batches is None:
            return cls(_places(sources.noise(need, seed), spaces), {})
        found = Activations.record(sources.models, sources.blueprints, sources.batches, spaces, {need})
        noise = sources.background(need, seed)
        return cls(_places(found, spaces), {} if noise is None else _places(noise, spaces))

    def relative(self, space: str) -> Floats:
        """(n × m) covariances of the first model's channels with the last one's, relative to the largest sum that
        rotations could give them."""
        cross = self.cross(space)
        last = next(iter(self.moments[space])).models - 1
        size = np.sqrt(np.trace(cross(0, 0)) * np.trace(cross(last, last)))
        return cross(0, last) / size if size > 0 else cross(0, last)

    def cross(self, space: str) -> Cross:
        known: dict[tuple[int, int], Floats] = {}
        seen, background = self.moments[space], self.noise.get(space, ())
        size = sum(float(m.union_variance().sum()) for m in seen)
        other = sum(float(m.union_variance().sum()) for m in background)
        share = BACKGROUND * size / other if other > 0 and np.isfinite(other) else 0.0

        def cross(i: int, j: int) -> Floats:
            if (i, j) not in known:
                parts = [_alike(m, i, j) for m in seen]
                parts += [share * _alike(m, i, j) for m in background] if share else []
                known[i, j] = torch.stack(parts).sum(0).cpu().numpy()
            return known[i, j]

        return cross


def _alike(moments: Moments, i: int, j: int) -> Tensor:
    """(n × m) covariances, and a little of the means' products: they tell directions apart in which nothing varies."""
    a, b = moments.mean(i), moments.mean(j)
    return moments.covariance(i, j) + MEANS * (a @ b.T) / a.shape[1]


def _places(activations: Activations, spaces: Sequence[str]) -> dict[str, list[Moments]]:
    """Space → its moments where weights read it, or where they write it if none do; norms see more than they read."""
    found = activations.union("post")
    return {s: [m for place, m in found[s].items() if place[2] != "normed"] for s in spaces}


def _frames(
    cross: Cross, widths: Sequence[int], into: Floats | None, *, centred: bool
) -> tuple[list[Floats], list[Floats]]:
    """A frame for each model, and for each but the last (n × m) what fusing its directions with the last one's costs.

    In a stream without mean one direction is empty: it comes first, and all models have it in common.
    """
    bases = [without_mean(n) if centred else np.eye(n) for n in widths]
    widths_inside = [b.shape[1] for b in bases]

    def inside(i: int, j: int) -> Floats:
        return bases[i].T @ cross(i, j) @ bases[j]

    inner = directions(inside, widths_inside) if into is None else alike_first(inside, bases[0].T @ into @ bases[1])
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


def _heads(
    measured: _Measured, spaces: Sequence[str], blueprints: Sequence[Blueprint], pairs: Mapping[str, Ints]
) -> list[dict[str, Floats]]:
    """For each model but the last, how the heads of a bundle are rotated: two models, or models whose heads differ in
    number or size, into the last one's; more into where all fit each other best."""
    last = len(blueprints) - 1
    makes = {tuple(len(channels) for s in spaces for channels in head_channels(b[s])) for b in blueprints}
    if last < 2 or len(makes) > 1:
        return [_into_last(measured, spaces, blueprints, m, pairs) for m in range(last)]
    known: dict[tuple[int, int], dict[str, Floats]] = {}

    def alike(i: int, j: int) -> dict[str, Floats]:
        if (i, j) not in known:
            known[i, j] = {s: _between_heads(measured.cross(s), [b[s] for b in blueprints], i, j) for s in spaces}
        return known[i, j]

    return rotations_into_last(pair_heads(alike, last + 1, pairs))


def _between_heads(cross: Cross, spaces: Sequence[Space], i: int, j: int) -> Floats:
    """(heads × heads × c × c) covariances of the channels of two models' heads, relative to the size of both."""
    ours, theirs = (np.stack(head_channels(spaces[k])) for k in (i, j))
    sizes = [np.diag(cross(k, k))[channels].sum(1) for k, channels in ((i, ours), (j, theirs))]
    size = np.sqrt(np.maximum(np.multiply.outer(*sizes), 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    blocks: Floats = cross(i, j)[ours[:, None, :, None], theirs[None, :, None, :]] * scale[:, :, None, None]
    return blocks


def _into_last(
    measured: _Measured, spaces: Sequence[str], blueprints: Sequence[Blueprint], m: int, pairs: Mapping[str, Ints]
) -> dict[str, Floats]:
    """Space → (heads × channels × channels) the rotation that brings every head of a model into the channels of the one
    of the last model that is most alike, over all spaces of the bundle; in some spaces within pairs of channels."""
    last = len(blueprints) - 1
    ours, theirs = ({s: head_channels(blueprints[k][s]) for s in spaces} for k in (m, last))
    crosses = {s: (measured.cross(s)(m, last), measured.cross(s)(m, m), measured.cross(s)(last, last)) for s in spaces}
    alike = np.zeros((len(ours[spaces[0]]), len(theirs[spaces[0]])))
    for s, (cross, own, other) in crosses.items():
        for i, a in enumerate(ours[s]):
            for j, b in enumerate(theirs[s]):
                alike[i, j] += similarity(cross[np.ix_(a, b)], own[a, a].sum(), other[b, b].sum(), pairs.get(s))
    found = {}
    for s, (cross, _, _) in crosses.items():
        rotation = np.stack([np.eye(len(a)) for a in ours[s]])
        for i, j in zip(*assignment(-alike), strict=True):
            a, b = ours[s][i], theirs[s][j]
            if len(a) == len(b):
                rotation[i] = within_head(cross[np.ix_(a, b)], pairs.get(s))
        found[s] = rotation
    return found
