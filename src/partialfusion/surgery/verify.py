"""Checks on numbers: what the labels say of a model must hold when its channels are really moved."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..blueprint import Blueprint, Kind
from ..core.modules import named_tensors, run
from ..errors import TraceError
from ..kernels import KernelPair, Plan, Reduction
from .apply import ResizeError, apply
from .resize import resized

log = logging.getLogger(__name__)

# Largest deviation from the original outputs, relative to their largest entry. A wrong tie deviates by order one.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
NOISE = 0.1


def verify(model: nn.Module, inputs: tuple[Any, ...], blueprint: Blueprint, seed: int = 0) -> Blueprint:
    """The blueprint with every space that fails a check demoted, and the reason named.

    Two checks, on a copy of the model with disturbed weights (zero-initialised branches would hide errors):
    reordering the channels of every space that is not rigid, and widening every elastic space by copies of some of
    its channels, must leave the outputs as they were. On the meta device there are no numbers: there the second check
    asks only that the widened model runs and traces to the same spaces.
    """
    rng = np.random.default_rng(seed)
    on_meta = any(t.is_meta for t in named_tensors(model).values())
    subject, inputs = (model, inputs) if on_meta else _precise(_disturbed(model, seed), inputs)
    references = [] if on_meta else _references(subject, inputs, seed)

    def same(plan: Plan) -> bool:
        result = apply([subject], [blueprint], plan, inputs).model
        return all(close(run(result, x), expected) for x, expected in references)

    def moves(spaces: Sequence[str]) -> bool:
        return same(reordered(blueprint, spaces, rng))

    def widens(spaces: Sequence[str]) -> bool:
        return same(_plan(blueprint, {s: _widen(blueprint[s].width, rng) for s in spaces}))

    if references:
        free = [s.name for s in blueprint if s.kind != "rigid"]
        blueprint = _demote(blueprint, bisect_failures(free, moves), "rigid", "reordering it changes the output")
    elastic = [s.name for s in blueprint if s.kind == "elastic"]
    stiff = not_resizable(blueprint, elastic, widens)
    blueprint = _demote(blueprint, stiff, "permutable", "the code does not follow its width")
    done = "channels reordered and widened, outputs unchanged"
    return replace(blueprint, checked="widened model traces the same (meta device: no numbers)" if on_meta else done)


def _precise(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model and its inputs in double precision, so that rounding in a deep network is not taken for an error.

    Code that insists on another type runs as it is.
    """

    def doubled(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    precise = copy.deepcopy(model).double()
    wide = tuple(tree_map(doubled, inputs))
    try:
        outputs = _tensors(run(precise, wide))
    except (RuntimeError, TypeError, ValueError):
        return model, inputs
    return (
        (precise, wide) if all(t.dtype == torch.float64 for t in outputs if t.is_floating_point()) else (model, inputs)
    )


Reference = tuple[tuple[Any, ...], Any]  # inputs and outputs


def _references(model: nn.Module, inputs: tuple[Any, ...], seed: int) -> list[Reference]:
    """The model's outputs on the example inputs and, where they are numbers, on random inputs of their shapes.

    Example inputs may be zeros, or so few that most of the network is silent.
    """
    generator = torch.Generator("cpu").manual_seed(seed)

    def drawn(value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.is_floating_point()):
            return value
        return torch.randn(value.shape, generator=generator, device="cpu").to(value)

    found = [(inputs, run(model, inputs))]
    if not close(run(model, inputs, seed=1), found[0][1]):
        raise TraceError(
            f"{type(model).__name__} gives different outputs each time it runs in evaluation mode; pass "
            "training=self.training to functional dropout, and draw nothing at random in forward"
        )
    for _ in range(2):
        other = tuple(tree_map(drawn, inputs))
        outputs = run(model, other)
        if all(bool(torch.isfinite(t).all()) for t in _tensors(outputs)):
            found.append((other, outputs))
    return found


def not_resizable(blueprint: Blueprint, spaces: Sequence[str], widens: Callable[[Sequence[str]], bool]) -> list[str]:
    """The spaces that cannot be widened: those the resized model's trace names, the rest by bisection.

    Spaces that share an axis with others (repeated shuffles, hard-coded splits) are the likeliest to fail, many at
    once; they are tried apart from those that have their axes to themselves.
    """

    def passes(some: Sequence[str]) -> bool:
        try:
            return widens(some)
        except ResizeError as error:
            log.debug("%s", error)
            return False

    found: list[str] = []
    while rest := [s for s in spaces if s not in found]:
        try:
            if widens(rest):
                return found
        except ResizeError as error:
            log.debug("%s", error)
            if error.exact:
                found += error.spaces
                continue
        crowded = {
            s.name for axes in blueprint.axes.values() for bound in axes.values() if len(bound) > 1 for s, _ in bound
        }
        alone, sharing = [s for s in rest if s not in crowded], [s for s in rest if s in crowded]
        return [*found, *bisect_failures(alone, passes), *bisect_failures(sharing, passes, trials=8)]
    return found


def bisect_failures(spaces: Sequence[str], passes: Callable[[Sequence[str]], bool], trials: int = 40) -> list[str]:
    """The spaces that fail a check, by bisection; where only a combination fails, all of it.

    After so many trials, whatever is still in doubt counts as failing.
    """
    budget = [trials]

    def search(some: Sequence[str]) -> list[str]:
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


def close(outputs: Any, reference: Any) -> bool:
    """Whether two outputs agree to the precision of their type."""
    pairs = zip(_tensors(outputs), _tensors(reference), strict=True)
    return all(a.shape == b.shape and deviation(a, b) <= TOLERANCE.get(b.dtype, 1e-4) for a, b in pairs)


def deviation(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest finite entry of b; infinite where only one of them is not finite."""
    differ = (a != b) & ~(a.isnan() & b.isnan())
    if not bool(differ.any()):
        return 0.0
    scale = b[torch.isfinite(b)].double().abs().amax() if bool(torch.isfinite(b).any()) else torch.ones(())
    gap = (a[differ].double() - b[differ].double()).abs().max() / scale.clamp_min(1e-30)
    return float(gap) if bool(torch.isfinite(gap)) else float("inf")


def _tensors(outputs: Any) -> list[Tensor]:
    return [t for t in tree_leaves(outputs) if isinstance(t, Tensor)]


def _demote(blueprint: Blueprint, names: Sequence[str], kind: Kind, reason: str) -> Blueprint:
    return blueprint.demote(dict.fromkeys(names, reason), kind) if names else blueprint


def _disturbed(model: nn.Module, seed: int) -> nn.Module:
    """A copy with noise on every parameter, relative to its size."""
    generator = torch.Generator("cpu").manual_seed(seed)
    tensors = named_tensors(model)
    twin = resized(model, {name: tuple(t.shape) for name, t in tensors.items()})
    with torch.no_grad():
        for name, target in named_tensors(twin).items():
            if not target.is_floating_point():
                continue
            source = tensors[name].detach().double()
            scale = source.square().mean().sqrt() if source.numel() else torch.tensor(0.0)
            noise = torch.randn(source.shape, generator=generator, dtype=torch.float64, device="cpu").to(source.device)
            value = source + NOISE * (scale if float(scale) > 0 else 1.0) * noise
            positive = isinstance(tensors[name], nn.Parameter) is False and bool((source >= 0).all())
            target.copy_(value.abs() if positive else value)
    return twin


Relation = tuple[np.ndarray, np.ndarray, np.ndarray, int]  # target, source, read weight, targets


def reordered(blueprint: Blueprint, spaces: Sequence[str], rng: np.random.Generator) -> Plan:
    """A plan for one model that puts the channels of the named spaces into a random order, blocks with their bundle."""
    relations: dict[str, Relation] = {}
    orders: dict[str, np.ndarray] = {}
    for name in spaces:
        space = blueprint[name]
        n = space.width
        order = np.roll(rng.permutation(n), 1) if n > 2 else np.arange(n)[::-1].copy()
        if space.blocks is not None and space.bundle is not None:
            heads = orders.setdefault(space.bundle, rng.permutation(int(space.blocks.max()) + 1))
            groups = [np.flatnonzero(space.blocks == h) for h in range(len(heads))]
            for h, group in enumerate(groups):
                order[group] = rng.permutation(groups[heads[h]])
        relations[name] = order, np.arange(n), np.ones(n), n
    return _plan(blueprint, relations)


def _plan(blueprint: Blueprint, relations: Mapping[str, Relation]) -> Plan:
    reductions = {s.name: _reduction(s.width, relations.get(s.name) or _keep(s.width)) for s in blueprint}
    return Plan(reductions, (1.0,))


def _reduction(n: int, relation: Relation) -> Reduction:
    target, source, read, targets = relation
    pair = KernelPair(target, source, np.ones(len(source)), read, targets, n)
    return Reduction((pair,), 0, (targets,), (KernelPair.identity(n),))


def _keep(n: int) -> Relation:
    return np.arange(n), np.arange(n), np.ones(n), n


def _widen(n: int, rng: np.random.Generator) -> Relation:
    """Copies of some channels, everything in a new order; whoever reads a copied channel reads half of each."""
    copied = rng.choice(n, max(1, n // 8), replace=False)
    source = np.concatenate([np.arange(n), copied])
    read = 1.0 / np.bincount(source)[source]
    return rng.permutation(len(source)), source, read, len(source)
