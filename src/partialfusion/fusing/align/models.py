"""Aligning models: every one but the last, with the last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from ...blueprint import Blueprint
from ...core.arrays import Floats
from ...core.modules import named_tensors
from ...errors import OptionError
from ...features import Side, WeightCosts, activation_costs
from ...kernels import Coupled, Coupling, Draft
from ...solvers import couple, fused_count
from ..options import Recipe
from .alignment import Alignment, Problem
from .fixed_point import fixed_point
from .greedy import greedy
from .separate import separate


def align_models(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    alphas: Mapping[str, float],
    batches: Iterable[tuple[Any, ...]] | None,
    recipe: Recipe,
) -> list[Alignment]:
    """One alignment for each model but the last.

    Args:
        models: the models.
        blueprints: one per model, with the same spaces.
        alphas: elastic space → isolated share.
        batches: data for activations.
        recipe: method, features and the way to align.
    """
    free = {s.name: alphas.get(s.name, 0.0) for s in blueprints[-1] if s.kind != "rigid"}
    if recipe.method == "average" or all(a == 1.0 for a in free.values()):
        return [Alignment(_in_order(widths)) for widths in _widths(blueprints)]
    return [pair.align(free) for pair in _pairs(models, blueprints, list(free), batches, recipe)]


def pair_costs(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    batches: Iterable[tuple[Any, ...]] | None,
    recipe: Recipe,
) -> list[dict[str, Floats]]:
    """For each model but the last: elastic space → (n × m) cost of fusing its channels, when all else is fused.

    Arguments as for `align_models`.
    """
    free = [s.name for s in blueprints[-1] if s.kind != "rigid"]
    elastic = [s.name for s in blueprints[-1] if s.kind == "elastic"]
    return [pair.costs(free, elastic) for pair in _pairs(models, blueprints, free, batches, recipe)]


def _widths(blueprints: Sequence[Blueprint]) -> list[dict[str, tuple[int, int]]]:
    last = blueprints[-1]
    return [{s.name: (b[s.name].width, s.width) for s in last} for b in blueprints[:-1]]


def _pairs(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    free: Sequence[str],
    batches: Iterable[tuple[Any, ...]] | None,
    recipe: Recipe,
) -> list[_Pair]:
    """Each model but the last, with the last, and what is measured between them."""
    check_numbers(models)
    measured: list[dict[str, Floats]] = [{} for _ in models[:-1]]
    if recipe.features != "weights":
        measured = activation_costs(models, blueprints, batches or (), free, recipe.site)
    sides = [Side(b, named_tensors(m)) for b, m in zip(blueprints, models, strict=True)]
    return [
        _Pair(side, sides[-1], own, costs, recipe)
        for side, own, costs in zip(sides[:-1], _widths(blueprints), measured, strict=True)
    ]


def check_numbers(models: Sequence[nn.Module]) -> None:
    """Comparing channels needs numbers."""
    if any(t.is_meta for m in models for t in named_tensors(m).values()):
        raise OptionError("the models have no numbers (meta device): only alpha=1 and method='average' need none")


def couple_models(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    alphas: Mapping[str, float],
    batches: Iterable[tuple[Any, ...]] | None,
    recipe: Recipe,
) -> Draft:
    """What is coupled with what; arguments as for `align_models`."""
    alignments = align_models(models, blueprints, alphas, batches, recipe)
    sweeps, converged = max(a.sweeps for a in alignments), all(a.converged for a in alignments)
    matches = {}
    for space in blueprints[-1]:
        couplings = [a.couplings[space.name] for a in alignments]
        if alphas.get(space.name) == 1.0:
            couplings = [c.isolated() for c in couplings]
        cost = sum(a.costs.get(space.name, 0.0) for a in alignments)
        matches[space.name] = Coupled(couplings, recipe.convention, cost, sweeps, converged)
    return Draft(matches, recipe.convention)


def _in_order(widths: Mapping[str, tuple[int, int]]) -> dict[str, Coupling]:
    """Channel i with channel i; where widths differ, nothing is fused."""
    return {
        s: Coupling.identity(n) if n == m else couple(np.zeros((n, m)), 0.0).isolated() for s, (n, m) in widths.items()
    }


@dataclass(frozen=True)
class _Pair:
    """A model and the last one, with the costs measured between them."""

    ours: Side
    theirs: Side
    widths: Mapping[str, tuple[int, int]]
    measured: Mapping[str, Floats]
    recipe: Recipe

    def align(self, free: Mapping[str, float]) -> Alignment:
        """Align the free spaces, space → isolated share."""
        if self.recipe.features == "activations":
            return self._by_activations(free)
        wanted = self._by_weights(free)
        if self.recipe.align == "greedy":
            return greedy(wanted)
        full = self._by_weights(wanted.at_full_fusion()) if wanted.is_partial() else None
        return fixed_point(wanted, full=full)

    def costs(self, free: Sequence[str], spaces: Sequence[str]) -> dict[str, Floats]:
        """Cost matrices of some spaces at the alignment of all free ones with nothing isolated."""
        whole = dict.fromkeys(free, 0.0)
        found = self.align(whole)
        problem = self._by_weights(whole)
        if self.recipe.features != "activations":
            return {s: problem.cost(s, found.couplings) for s in spaces}
        return {s: self.measured[s] if s in self.measured else problem.cost(s, found.couplings) for s in spaces}

    def _by_activations(self, free: Mapping[str, float]) -> Alignment:
        """Spaces that no recorded operation writes are aligned by their weights, given the others."""
        found = separate(replace(self._problem(free), fixed_costs=self.measured))
        unseen = {s: a for s, a in free.items() if s not in found.costs}
        if not unseen:
            return found
        rest = replace(self._by_weights(free), alphas=unseen, fixed_costs={})
        aligned = fixed_point(rest, known=found.couplings)
        return replace(aligned, costs={**found.costs, **aligned.costs})

    def _problem(self, alphas: Mapping[str, float]) -> Problem:
        blueprint = self.theirs.blueprint
        return Problem(
            None,
            {},
            alphas,
            self.widths,
            split=self.recipe.convention == "mass",
            blocks={s.name: s.blocks for s in blueprint if s.blocks is not None and s.name in alphas},
            bundles=blueprint.bundles(alphas),
        )

    def _by_weights(self, alphas: Mapping[str, float]) -> Problem:
        """The problem on weights, with the measured costs on the same scale."""
        problem = self._problem(alphas)
        share = dict.fromkeys(self.widths, 1.0)
        for s in alphas:
            m = self.widths[s][1]
            share[s] = max(fused_count(m, problem.matched_alpha(s)), 1) / m
        rebasin = self.recipe.method == "permutation"
        weights = WeightCosts(
            self.ours,
            self.theirs,
            share,
            convention=self.recipe.convention,
            normalise=not rebasin,
            vectors=rebasin,
        )
        scaled = {s: c / (self.widths[s][1] * share[s]) for s, c in self.measured.items()}
        return replace(problem, weights=weights, fixed_costs=scaled)
