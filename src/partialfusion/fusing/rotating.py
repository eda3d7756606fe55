"""Models in other frames: what they compute stays, and their directions correspond better than their channels do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Blueprint
from ..core.arrays import Floats, Ints
from ..core.text import shorten
from ..features import Activations, Need
from ..features.moments import Moments
from ..features.readers import BACKGROUND
from ..rotation import Rotatable, Rotations, head_channels
from ..solvers import assignment
from ..solvers.directions import Cross, alike_first, directions, generalised, similarity, within_head
from .align import Aligner
from .align.joint import Descent, Similarities, block_diagonal, nearest, without_mean
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
    jointly: Mapping[str, Floats] = {}
    paired: dict[str, list[Floats]] = {}
    alone = _alone(sources, rotatable) if recipe.align == "fixed-point" else ""
    if recipe.align == "fixed-point" and last == 1 and not alone:
        jointly, costs = _jointly(sources, models, rotatable, recipe, measured, heads[0], uncentred=not keep_norms)
        paired = {s: [cost] for s, cost in costs.items()}
        heads = [{s: _blocks(jointly[s], opened[0], s) for s in heads[0]}]
        models[0] = folded(0)
    turned: list[dict[str, Floats]] = [*heads, {}]
    for name in rotatable.directions:
        centred, into = _centred(rotatable, name), jointly.get(name)
        frames, apart = _frames(measured.cross(name), sources.widths[name], into, centred=centred)
        if keep_norms:
            *others, reference = frames
            frames = [frame @ reference.T for frame in others]
        else:
            paired[name] = apart
        for m, frame in enumerate(frames):
            turned[m][name] = frame
    precision = _precision(models)
    found = tuple({s: torch.from_numpy(r).to(precision) for s, r in turns.items()} for turns in turned)
    rotations = Rotations(found, uncentred=not keep_norms, left=rotatable.left, alone=alone)
    return sources.turned(models, rotatable.turned(models, blueprints, rotations), paired), rotations


def _alone(sources: Sources, rotatable: Rotatable) -> str:
    """Why the models cannot be aligned jointly, in words; empty for one model, where there is nothing to align."""
    if len(sources.models) > 2:
        return "rotated in one pass: joint alignment is for two models"
    unequal = [s for s in rotatable.spaces if len(set(sources.widths[s])) > 1]
    return f"rotated in one pass: joint alignment needs equal widths, and {shorten(unequal)} differ" if unequal else ""


def _jointly(
    sources: Sources,
    models: list[nn.Module],
    rotatable: Rotatable,
    recipe: Recipe,
    measured: _Measured,
    heads: Mapping[str, Floats],
    *,
    uncentred: bool,
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """How the first of two models is rotated into the channels of the second, and where it is aligned whole what is
    matched with what elsewhere: first by what is measured, then by coordinate descent on that and the weights.

    The first model is rotated in place.

    Returns:
        Space → (n × n) how it is rotated, and other space → (n × n) what fusing its channels costs then.
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
    couplings = dict(alignment.couplings)
    for space, pairing in rotatable.rotary.items():
        couplings[space] = couplings[space].within(pairing.size)
    # MLPs take part where that was measured to be better: on data, with nothing kept apart.
    whole = not uncentred and recipe.features in ("activations", "both") and recipe.masses == "equal"
    turned = {sources.blueprint[s].bundle for s in start} - {None}
    taking_part = [s.name for s in sources.blueprint if s.name not in start and (whole or s.bundle in turned)]
    known = aligner.correlations()
    alike = Similarities(
        {s: r.T @ measured.relative(s) for s, r in start.items()},
        {s: known[s] for s in taking_part if s in known and len(set(known[s].shape)) == 1},
        frozenset(s for s in rotatable.directions if _centred(rotatable, s)),
        _pairs(rotatable),
    )
    descent = Descent(models, [rotatable.opened(b) for b in blueprints], couplings, alike)
    descent.run()
    alone = [s for s in alike.matched if sources.blueprint[s].bundle is None]
    return {s: start[s] @ step for s, step in descent.turns.items()}, {s: descent.cost(s) for s in alone}


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
            return cls(_places(sources.noise(need, seed, spaces=spaces), spaces), {})
        found = Activations.record(sources.models, sources.blueprints, sources.batches, spaces, {need})
        noise = sources.background(need, seed, spaces)
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
    """For each model but the last: space → (heads × channels × channels) how its heads are rotated.

    Every head is paired with one of the last model, over all spaces of the bundle. Two such heads are rotated into each
    other's channels, more into where all fit each other best; in some spaces within pairs of channels.
    """
    last = len(blueprints) - 1
    heads = {s: [head_channels(b[s]) for b in blueprints] for s in spaces}
    found = [{s: np.stack([np.eye(len(a)) for a in own[m]]) for s, own in heads.items()} for m in range(last)]
    partners = [_partners(measured, heads, m, pairs) for m in range(last)]
    for s, own in heads.items():
        for place, theirs in enumerate(own[last]):
            at = {m: partner[place] for m, partner in enumerate(partners) if place in partner}
            members = {m: own[m][h] for m, h in at.items() if len(own[m][h]) == len(theirs)} | {last: theirs}
            for m, rotation in _into_last(measured.cross(s), members, pairs.get(s)).items():
                found[m][s][at[m]] = rotation
    return found


def _partners(
    measured: _Measured, heads: Mapping[str, Sequence[Sequence[Ints]]], m: int, pairs: Mapping[str, Ints]
) -> dict[int, int]:
    """Head of the last model → the head of another that is most alike, one to one."""
    first = next(iter(heads.values()))
    alike = np.zeros((len(first[m]), len(first[-1])))
    for s, own in heads.items():
        cross, last = measured.cross(s), len(own) - 1
        between, ours, theirs = cross(m, last), cross(m, m), cross(last, last)
        for i, a in enumerate(own[m]):
            for j, b in enumerate(own[last]):
                alike[i, j] += similarity(between[np.ix_(a, b)], ours[a, a].sum(), theirs[b, b].sum(), pairs.get(s))
    return {int(j): int(i) for i, j in zip(*assignment(-alike), strict=True)}


def _into_last(cross: Cross, members: Mapping[int, Ints], pairs: Ints | None) -> dict[int, Floats]:
    """For each of some models but the last, how one of its heads is rotated into the channels of the last one's.

    Args:
        cross: two models → covariances of their channels.
        members: model → the channels of its head, as many in all; the last one is the reference.
        pairs: the channels of a head that may be rotated with each other, if not all may be.
    """
    *others, last = members
    if len(others) < 2:
        return {m: within_head(cross(m, last)[np.ix_(members[m], members[last])], pairs) for m in others}
    models = [*others, last]

    def between(i: int, j: int) -> Floats:
        inner: Floats = cross(models[i], models[j])[np.ix_(members[models[i]], members[models[j]])]
        return inner

    frames = generalised(between, len(models), len(members[last]), pairs)
    return {m: frame @ frames[-1].T for m, frame in zip(others, frames, strict=False)}
