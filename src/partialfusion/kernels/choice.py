"""Generalised pruning of one space: channels of the union are isolated, deleted or combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.arrays import MASS_TOLERANCE, Floats, Ints
from ..core.literals import Convention
from .pair import Interpolation, KernelPair, ReadMap
from .reduction import Reduction


@dataclass(frozen=True)
class Choice:
    """What becomes of the n channels of a space of the union; channels without an entry are deleted.

    Attributes:
        target, source: (e,) entry e sends a source channel, 0 … n − 1 over all models, to a target channel.
        mass: (e,) non-negative mass sent.
        targets: number of target channels, each with at least one entry.
        cost: what is lost, in the units of the features.
        complete: False where the search was interrupted.
        ridge: read the channels without an entry by least squares, with this strength of the ridge; None where they
            are not read at all. It is for choices in which every target has one entry.
        interpolation: what is read then, over the channels of all models.
    """

    target: Ints
    source: Ints
    mass: Floats
    targets: int
    cost: float = 0.0
    complete: bool = True
    ridge: float | None = None
    interpolation: Interpolation | None = None

    @classmethod
    def of_labels(cls, labels: Ints, masses: Floats, cost: float = 0.0, *, complete: bool = True) -> Choice:
        """Every channel goes to the target of its label, 0 … k − 1."""
        return cls(labels, np.arange(len(labels)), masses, int(labels.max()) + 1, cost, complete)

    @classmethod
    def of_kept(cls, kept: Ints, cost: float = 0.0, *, ridge: float | None = None) -> Choice:
        """The channels named stay isolated, all others are deleted, or with a ridge read by least squares."""
        return cls(np.arange(len(kept)), kept, np.ones(len(kept)), len(kept), cost, ridge=ridge)

    @classmethod
    def of_coupling(cls, plan: Floats, cost: float = 0.0) -> Choice:
        """All channels are transported onto k targets: (n × k) masses."""
        source, target = np.nonzero(plan > MASS_TOLERANCE * plan.max())
        return cls(target, source, plan[source, target], plan.shape[1], cost)

    def scaled(self, by: Floats) -> Choice:
        """The same with (n,) factors on the masses of the channels."""
        return replace(self, mass=self.mass * by[self.source])


def reduce_union(
    choice: Choice, widths: Sequence[int], convention: Convention = "value", *, frames: Sequence[KernelPair] = ()
) -> Reduction:
    """The reduction of one space from a choice over all models' channels.

    Value convention: a target is the average of what it receives, weighted by mass; a source reads the average of where
    it goes. Mass convention (the paper's): a target is the sum, and a source reads its part of it.

    Target channels are ordered: of model 0 alone, of model 1 alone, …, of several models, of the last model alone;
    within these by their first source channel.

    Args:
        choice: what goes where.
        widths: channels of the space in each model.
        convention: "value" or "mass".
        frames: per model, its kernel pair into the reference frame, where that is known.
    """
    starts = np.cumsum([0, *widths])
    model = np.searchsorted(starts, choice.source, side="right") - 1
    place = _ordered(choice, model, len(widths))
    target = place[choice.target]
    per_target = _fractions(choice.mass, target, choice.targets)
    per_source = _fractions(choice.mass, choice.source, int(starts[-1]))
    write, read = (per_target, per_source) if convention == "value" else (per_source, per_target)
    pairs = []
    for m, width in enumerate(widths):
        entries = model == m
        source = choice.source[entries] - starts[m]
        read_by = _of_model(choice.interpolation, place, slice(int(starts[m]), int(starts[m + 1])))
        pairs.append(KernelPair(target[entries], source, write[entries], read[entries], choice.targets, width, read_by))
    writes = _support(choice, model, len(widths))
    single = writes.sum(1) == 1
    return Reduction(
        pairs=tuple(pairs),
        fused=int((~single).sum()),
        isolated=tuple(int(n) for n in writes[single].sum(0)),
        frames=tuple(frames),
        cost=choice.cost,
        sweeps=1,
        converged=choice.complete,
    )


def _of_model(whole: Interpolation | None, place: Ints, rows: slice) -> Interpolation | None:
    """The part of one model, with the targets at their new places."""
    if whole is None:
        return None
    maps: dict[str, ReadMap | None] = {}
    for weight, found in whole.maps.items():
        assert found is not None
        matrix = np.empty_like(found.matrix[rows])
        matrix[:, place] = found.matrix[rows]
        maps[weight] = replace(found, matrix=matrix, offset=None if found.offset is None else found.offset[rows])
    sizes, kept = None if whole.sizes is None else whole.sizes[rows], None
    if whole.kept is not None:
        kept = np.empty_like(whole.kept)
        kept[place] = whole.kept
    return Interpolation(place[whole.nearest[rows]], maps, sizes, kept)


def _support(choice: Choice, model: Ints, models: int) -> np.ndarray:
    """(targets × models) who sends to a target."""
    writes = np.zeros((choice.targets, models), bool)
    writes[choice.target, model] = True
    return writes


def _ordered(choice: Choice, model: Ints, models: int) -> Ints:
    """(targets,) the new place of every target."""
    writes = _support(choice, model, models)
    only = writes.argmax(1)
    group = np.where(writes.sum(1) > 1, models - 1, np.where(only == models - 1, models, only))
    first = np.full(choice.targets, np.iinfo(np.int64).max)
    np.minimum.at(first, choice.target, choice.source)
    place = np.empty(choice.targets, np.int64)
    place[np.lexsort((first, group))] = np.arange(choice.targets)
    return place


def _fractions(mass: Floats, place: Ints, count: int) -> Floats:
    """(e,) each entry's fraction of the mass at its place; where there is none, entries count equally."""
    total = np.bincount(place, mass, count)[place]
    entries = np.bincount(place, minlength=count)[place]
    return np.where(total > 0, mass / np.where(total > 0, total, 1.0), 1.0 / entries)
