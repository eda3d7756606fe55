"""The draft of a generalised pruning: every space of the union reduced to the channels asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from ...blueprint import Blueprint, Space
from ...core.modules import named_tensors
from ...core.progress import ProgressCallback, silent
from ...features import Side, UnionFeatures, UnionSpace, union_moments
from ...features.moments import Moments
from ...kernels import Choice, Chosen, Coupled, Draft, KernelPair, Match
from ...kernels.pair import frames
from ..align import Alignment, align_models, check_numbers
from ..options import Recipe
from .methods import PruningMethod, Search

Batches = Iterable[tuple[Any, ...]]


def prune_union(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    targets: Mapping[str, int],
    batches: Batches | None,
    recipe: Recipe,
    method: PruningMethod,
    listener: ProgressCallback = silent,
) -> Draft:
    """Reduce every elastic space of the union with the recipe's method.

    Spaces that are only permutable keep their width, so there channels of the models are matched one to one.

    Args:
        models: the models, one or more.
        blueprints: one per model, with the same spaces.
        targets: elastic space → channels in the result.
        batches: data for activations.
        recipe: features, site, mix and convention.
        method: what chooses.
        listener: told how far the search is.
    """
    last = blueprints[-1]
    widths = {s.name: [b[s.name].width for b in blueprints] for s in last}
    reduced = [s for s, k in targets.items() if k < sum(widths[s])]
    features, alignments = _features(models, blueprints, reduced, batches, recipe, method, listener)
    worlds = features.worlds
    search = Search(recipe.seed)
    found: dict[str, Match] = {}
    for space in last:
        own, world = widths[space.name], world_of(worlds, space)
        if space.name not in targets:
            found[space.name] = _kept_width(space, alignments, recipe, world)
            continue
        search.on_progress = _progress(listener, space, reduced)
        choice = _choice(space, own, targets[space.name], features, recipe, method, search)
        found[space.name] = Chosen(choice, recipe.mix, own, recipe.convention, world)
    return Draft(found, recipe.convention)


def union_spaces(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    batches: Batches | None,
    recipe: Recipe,
    method: PruningMethod,
) -> dict[str, UnionSpace]:
    """Elastic space → its channels in all models together, as a method sees them."""
    elastic = [s.name for s in blueprints[-1] if s.kind == "elastic"]
    features, _ = _features(models, blueprints, elastic, batches, recipe, method, silent)
    return {name: _union_space(name, [b[name].width for b in blueprints], features, recipe) for name in elastic}


def _features(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    reduced: Sequence[str],
    batches: Batches | None,
    recipe: Recipe,
    method: PruningMethod,
    listener: ProgressCallback,
) -> tuple[UnionFeatures, list[Alignment]]:
    """What is known of the channels of the spaces that are reduced, and how the models correspond."""
    moments: dict[str, list[Moments]] = {}
    if reduced:
        check_numbers(models)
        if recipe.features != "weights" or method.needs_data:
            listener("recording activations", 0.0)
            moments = union_moments(models, blueprints, batches or (), reduced, recipe.site)
    alignments = _alignments(models, blueprints, reduced, moments, batches, recipe)
    worlds = _worlds(blueprints[-1], alignments, recipe)
    sides = [Side(b, named_tensors(m)) for b, m in zip(blueprints, models, strict=True)]
    return UnionFeatures(sides, worlds, moments, recipe.features), alignments


def _union_space(name: str, widths: Sequence[int], features: UnionFeatures, recipe: Recipe) -> UnionSpace:
    masses = np.repeat(np.asarray(recipe.mix), widths)
    return UnionSpace(name, masses, np.repeat(np.arange(len(widths)), widths), features)


def _choice(
    space: Space,
    widths: Sequence[int],
    k: int,
    features: UnionFeatures,
    recipe: Recipe,
    method: PruningMethod,
    search: Search,
) -> Choice:
    union = _union_space(space.name, widths, features, recipe)
    if k == union.width:
        return Choice.of_labels(np.arange(k), union.masses)
    choice = method.choose(union, k, search)
    assert choice.targets == k, f"{method.name} gave {choice.targets} channels for {space.name} instead of {k}"
    return choice


def _alignments(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    reduced: Sequence[str],
    moments: Mapping[str, Sequence[Moments]],
    batches: Batches | None,
    recipe: Recipe,
) -> list[Alignment]:
    """How the models correspond, where that is needed: to compare their weights, to match spaces that keep their
    width, and for the data-free normalisation rule. Without need, channel i stands for channel i."""
    last = blueprints[-1]
    by_weights = recipe.features != "activations" or any(s not in moments for s in reduced)
    matched = any(s.kind == "permutable" for s in last)
    analytic = recipe.norm == "analytic" and bool(last.norms)
    needed = (reduced and (by_weights or analytic)) or matched
    elastic = [s.name for s in last if s.kind == "elastic"]
    alphas = dict.fromkeys(elastic, 0.0 if needed and reduced else 1.0)
    return align_models(models, blueprints, alphas, batches, recipe)


def _worlds(last: Blueprint, alignments: Sequence[Alignment], recipe: Recipe) -> list[dict[str, KernelPair]]:
    """Per model, space → its place in the last model's world."""
    others = [
        {s.name: frames(a.couplings[s.name], recipe.convention, complete=True)[0] for s in last} for a in alignments
    ]
    return [*others, {s.name: KernelPair.identity(s.width) for s in last}]


def world_of(worlds: Sequence[Mapping[str, KernelPair]], space: Space) -> list[KernelPair]:
    return [world[space.name] for world in worlds]


def _kept_width(space: Space, alignments: Sequence[Alignment], recipe: Recipe, world: Sequence[KernelPair]) -> Match:
    """A space that keeps its width: matched one to one, or in a single model left as it is."""
    if alignments:
        return Coupled([a.couplings[space.name] for a in alignments], recipe.convention)
    whole = Choice.of_labels(np.arange(space.width), np.ones(space.width))
    return Chosen(whole, recipe.mix, [space.width], recipe.convention, world)


def _progress(listener: ProgressCallback, space: Space, reduced: Sequence[str]) -> Any:
    """Tells the listener how far the search in one space is, as a share of the whole."""
    if space.name not in reduced:
        return None
    at = reduced.index(space.name)

    def tell(done: int, total: int) -> None:
        listener(f"{space.name} ({at + 1} of {len(reduced)})", (at + done / max(total, 1)) / len(reduced))

    tell(0, 1)
    return tell
