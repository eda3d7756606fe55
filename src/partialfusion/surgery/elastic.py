"""Which widths may change: an elastic space is widened by copies of its channels, and the outputs must stay."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

import numpy as np
from torch import nn

from ..blueprint import Blueprint
from ..core.inputs import Inputs
from ..kernels import KernelPair, Plan, Reduction
from .apply import ResizeError, SurgeryResult, apply
from .numbers import Follows

log = logging.getLogger(__name__)

Relation = tuple[np.ndarray, np.ndarray, np.ndarray, int]  # target, source, read weight, targets
Group = tuple[str, ...]  # spaces whose widths change together
T = TypeVar("T")


def check_widths(
    model: nn.Module,
    blueprint: Blueprint,
    inputs: Inputs,
    same: Callable[[nn.Module], bool],
    rng: np.random.Generator,
) -> Blueprint:
    """The blueprint with every space demoted to permutable whose width the code does not follow.

    All widths are changed one without the other first. Where that fails, heads and the stream that they belong to are
    widened in proportion, as code needs that takes one width for the other; and where that fails, too, all spaces by
    one share, for code that keeps one number for several widths, such as that of the parts into which it splits.

    Args:
        model: the model to widen.
        blueprint: its blueprint.
        inputs: example inputs.
        same: whether a widened model computes what the model does.
        rng: chooses the channels to copy.
    """
    known: list[Follows] = []

    def widened(trial: Blueprint, groups: Sequence[Group], follows: Follows | None, *, alike: bool) -> SurgeryResult:
        steps = _steps_to_add(trial, alike=alike)
        relations = {s: r for group in groups for s, r in _copies(trial, group, steps[group], rng).items()}
        return apply([model], [replace(trial, follows=follows)], plan_of(trial, relations), inputs)

    def passes(trial: Blueprint, groups: Sequence[Group], *, alike: bool) -> bool:
        """Whether the model works with these groups widened, by the numbers that are known to follow or by others."""
        for follows in (*known[-1:], None):
            try:
                result = widened(trial, groups, follows, alike=alike)
            except ResizeError as error:
                log.debug("%s", error)
                return False
            if same(result.model):
                known.append(result.follows)
                return True
        return False

    if not blueprint.groups:
        return replace(blueprint, follows={})
    tied = _tied(blueprint)
    for trial, alike in dict.fromkeys(((blueprint, False), (tied, False), (tied, True))):
        if passes(trial, trial.groups, alike=alike):
            return replace(trial, follows=known[-1])
    blueprint = tied
    stiff = _not_resizable(blueprint, partial(passes, blueprint, alike=True), partial(widened, blueprint, alike=True))
    reasons = {space: "the code does not follow its width" for group in stiff for space in group}
    return replace(blueprint.demote(reasons, "permutable"), follows=known[-1] if known else {})


def _tied(blueprint: Blueprint) -> Blueprint:
    """The blueprint with heads and the streams next to them in one group; itself where there are none."""
    leader = {name: group[0] for group in blueprint.groups for name in group}
    for s in blueprint:
        if s.kind != "elastic" or s.blocks is None:
            continue
        for near in _next_to(blueprint, s.name):
            if near.kind == "elastic" and near.blocks is None and near.width % s.heads == 0:
                old, new = leader[near.name], leader[s.name]
                leader = {name: new if first == old else first for name, first in leader.items()}
    members: dict[str, list[str]] = {}
    for name, first in leader.items():
        members.setdefault(first, []).append(name)
    if len(members) == len(blueprint.groups):
        return blueprint
    found = dict(blueprint.by_name)
    for names in members.values():
        if len(names) > 1:
            count = math.gcd(*(blueprint[n].heads or blueprint[n].width for n in names))
            first = next(n for n in blueprint.by_name if n in names)
            for n in names:
                found[n] = replace(found[n], group=first, step=found[n].width // count)
    return replace(blueprint, spaces=tuple(found.values()))


def _next_to(blueprint: Blueprint, name: str) -> list[Any]:
    """The spaces on the other axes of the weights that a space is bound to."""
    found = {}
    for binding in blueprint[name].bindings:
        for axis, bound in blueprint.axes[binding.parameter].items():
            if axis != binding.axis:
                found.update({s.name: s for s, _ in bound})
    return list(found.values())


def _not_resizable(
    blueprint: Blueprint,
    passes: Callable[[Sequence[Group]], bool],
    widened: Callable[[Sequence[Group], None], SurgeryResult],
) -> list[Group]:
    """The groups that cannot be widened: those the resized model's trace names, the rest by bisection.

    Spaces that share an axis with others (repeated shuffles, hard-coded splits) are the likeliest to fail, many at
    once; they are tried apart from those that have their axes to themselves.
    """
    found: list[Group] = []
    while rest := [g for g in blueprint.groups if g not in found]:
        try:
            widened(rest, None)
        except ResizeError as error:
            log.debug("%s", error)
            if error.exact:
                found += [g for g in rest if set(g) & set(error.spaces)]
                continue
        crowded = {
            s.name for axes in blueprint.axes.values() for bound in axes.values() if len(bound) > 1 for s, _ in bound
        }
        alone, sharing = [g for g in rest if not set(g) & crowded], [g for g in rest if set(g) & crowded]
        return [*found, *bisect_failures(alone, passes), *bisect_failures(sharing, passes, trials=8)]
    return found


def bisect_failures(spaces: Sequence[T], passes: Callable[[Sequence[T]], bool], trials: int = 40) -> list[T]:
    """The spaces that fail a check, by bisection; where only a combination fails, all of it.

    After so many trials, whatever is still in doubt counts as failing.
    """
    budget = [trials]

    def search(some: Sequence[T]) -> list[T]:
        budget[0] -= 1
        if not some or passes(some):
            return []
        if len(some) == 1 or budget[0] <= 0:
            return list(some)
        half = len(some) // 2
        found = [*search(some[:half]), *search(some[half:])]
        rest = [s for s in some if s not in found]
        return found if found and (not rest or len(found) == len(some) or passes(rest)) else list(some)

    return search(spaces)


def _steps_to_add(blueprint: Blueprint, *, alike: bool) -> dict[Group, int]:
    """Group → the number of steps by which it is widened: an eighth of it, or, unless all are to be alike, somewhat
    more.

    As far as there is room, no two groups grow by the same share, so that a number that repeats one width is not taken
    for one that repeats another. The layers of a stack are alike and grow alike. An even number stays even, for code
    that halves a width.
    """
    if alike:
        return {group: max(1, blueprint[group[0]].steps // 8) for group in blueprint.groups}
    kinds = {group: _kind(blueprint, group) for group in blueprint.groups}
    found: dict[object, int] = {}
    taken: set[Fraction] = set()
    for steps, kind in sorted(dict.fromkeys(kinds.values()), key=lambda kind: kind[0]):
        eighth = max(1, steps // 8)
        free = (n for n in range(eighth, steps // 2 + 1, 1 + (eighth % 2 == 0)) if Fraction(n, steps) not in taken)
        found[steps, kind] = count = next(free, eighth)
        taken.add(Fraction(count, steps))
    return {group: found[kind] for group, kind in kinds.items()}


def _kind(blueprint: Blueprint, group: Group) -> tuple[int, frozenset[tuple[str, int]]]:
    """The steps of a group, and the axes that it is bound to, without the numbers of layers."""
    axes = frozenset((re.sub(r"\d+", "", b.parameter), b.axis) for name in group for b in blueprint[name].bindings)
    return blueprint[group[0]].steps, axes


def _copies(blueprint: Blueprint, group: Group, count: int, rng: np.random.Generator) -> dict[str, Relation]:
    """Copies of so many steps of every space of a group: the same heads of a bundle, any channels of others.

    Everything is put into a new order; whoever reads a copied channel reads half of each.
    """
    steps = blueprint[group[0]].steps
    found = {}
    chosen: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in group:
        space = blueprint[name]
        if space.blocks is None:
            copied = rng.choice(space.width, count * space.step, replace=False)
            order = rng.permutation(space.width + len(copied))
        else:
            heads = count * space.heads // steps
            if str(space.bundle) not in chosen:
                picked = rng.choice(space.heads, heads, replace=False)
                chosen[str(space.bundle)] = picked, rng.permutation(space.heads + heads)
            picked, places = chosen[str(space.bundle)]
            size = space.width // space.heads
            copied = (picked[:, None] * size + np.arange(size)).reshape(-1)
            order = (places[:, None] * size + np.arange(size)).reshape(-1)
        source = np.concatenate([np.arange(space.width), copied])
        found[name] = order, source, 1.0 / np.bincount(source)[source], len(source)
    return found


def plan_of(blueprint: Blueprint, relations: Mapping[str, Relation]) -> Plan:
    """A plan for one model; spaces without a relation stay as they are."""
    reductions = {s.name: _reduction(s.width, relations.get(s.name) or _keep(s.width)) for s in blueprint}
    return Plan(reductions, (1.0,))


def _reduction(n: int, relation: Relation) -> Reduction:
    target, source, read, targets = relation
    pair = KernelPair(target, source, np.ones(len(source)), read, targets, n)
    return Reduction((pair,), 0, (targets,), (KernelPair.identity(n),))


def _keep(n: int) -> Relation:
    return np.arange(n), np.arange(n), np.ones(n), n
