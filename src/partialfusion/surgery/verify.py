"""Checks on numbers: what the labels say of a model must hold when its channels are really moved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..blueprint import Blueprint, Kind, named_tensors, run
from ..kernels import KernelPair, Plan, Reduction
from .apply import ResizeError, apply
from .resize import resized

log = logging.getLogger(__name__)

# Largest deviation from the original outputs, relative to their largest entry. A wrong tie deviates by order one.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
NOISE = 0.1


def verify(model: nn.Module, inputs: tuple[Any, ...], blueprint: Blueprint, seed: int = 0) -> Blueprint:
    """The blueprint with every space that fails a check demoted, and the reason named.

    Two checks, on a copy of the model with disturbed weights (zero-initialised branches would hide mistakes):
    reordering the channels of every space that is not rigid, and widening every elastic space by copies of some of
    its channels, must leave the outputs as they were. On the meta device there are no numbers: there the second check
    asks only that the widened model runs and traces to the same spaces.
    """
    rng = np.random.default_rng(seed)
    on_meta = any(t.is_meta for t in named_tensors(model).values())
    subject = model if on_meta else _disturbed(model, seed)
    reference = None if on_meta else run(subject, inputs)

    def same(plan: Plan) -> bool:
        result = apply([subject], [blueprint], plan, inputs).model
        return reference is None or close(run(result, inputs), reference)

    def moves(spaces: Sequence[str]) -> bool:
        return same(_plan(blueprint, spaces, lambda n: _shuffle(n, rng)))

    def widens(spaces: Sequence[str]) -> bool:
        try:
            return same(_plan(blueprint, spaces, lambda n: _widen(n, rng)))
        except ResizeError as error:
            log.debug("%s", error)
            return False

    if reference is not None:
        free = [s.name for s in blueprint if s.kind != "rigid"]
        blueprint = _demote(blueprint, culprits(free, moves), "rigid", "reordering it changes the output")
    elastic = [s.name for s in blueprint if s.kind == "elastic"]
    blueprint = _demote(blueprint, culprits(elastic, widens), "permutable", "the code does not follow its width")
    done = "channels reordered and widened, outputs unchanged"
    return replace(blueprint, checked="widened model traces the same (meta device: no numbers)" if on_meta else done)


def culprits(spaces: Sequence[str], passes: Callable[[Sequence[str]], bool]) -> list[str]:
    """The spaces that fail a check, by bisection; where only a combination fails, all of it."""
    if not spaces or passes(spaces):
        return []
    if len(spaces) == 1:
        return list(spaces)
    half = len(spaces) // 2
    found = [*culprits(spaces[:half], passes), *culprits(spaces[half:], passes)]
    rest = [s for s in spaces if s not in found]
    return found if found and (not rest or passes(rest)) else list(spaces)


def close(outputs: Any, reference: Any) -> bool:
    """Whether two outputs agree to the precision of their type."""
    pairs = zip(_tensors(outputs), _tensors(reference), strict=True)
    return all(a.shape == b.shape and deviation(a, b) <= TOLERANCE.get(b.dtype, 1e-4) for a, b in pairs)


def deviation(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest entry of b; infinite where a is not finite."""
    if a.numel() == 0:
        return 0.0
    gap = (a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)
    return float(gap) if bool(torch.isfinite(gap)) else float("inf")


def _tensors(outputs: Any) -> list[Tensor]:
    return [t for t in tree_leaves(outputs) if isinstance(t, Tensor)]


def _demote(blueprint: Blueprint, names: Sequence[str], kind: Kind, reason: str) -> Blueprint:
    return blueprint.demote(dict.fromkeys(names, reason), kind) if names else blueprint


def _disturbed(model: nn.Module, seed: int) -> nn.Module:
    """A copy with noise on every parameter, relative to its size."""
    generator = torch.Generator().manual_seed(seed)
    tensors = named_tensors(model)
    copy = resized(model, {name: tuple(t.shape) for name, t in tensors.items()})
    with torch.no_grad():
        for name, target in named_tensors(copy).items():
            if not target.is_floating_point():
                continue
            source = tensors[name].detach().double()
            scale = source.square().mean().sqrt() if source.numel() else torch.tensor(0.0)
            noise = torch.randn(source.shape, generator=generator, dtype=torch.float64).to(source.device)
            value = source + NOISE * (scale if float(scale) > 0 else 1.0) * noise
            positive = isinstance(tensors[name], nn.Parameter) is False and bool((source >= 0).all())
            target.copy_(value.abs() if positive else value)
    return copy


Relation = tuple[np.ndarray, np.ndarray, np.ndarray, int]  # target, source, read weight, targets


def _plan(blueprint: Blueprint, spaces: Sequence[str], relate: Callable[[int], Relation]) -> Plan:
    chosen = set(spaces)
    reductions: Mapping[str, Reduction] = {
        s.name: _reduction(s.width, relate(s.width)) if s.name in chosen else _reduction(s.width, _keep(s.width))
        for s in blueprint
    }
    return Plan(reductions, (1.0,))


def _reduction(n: int, relation: Relation) -> Reduction:
    target, source, read, targets = relation
    pair = KernelPair(target, source, np.ones(len(source)), read, targets, n)
    return Reduction((pair,), 0, (targets,), (KernelPair.identity(n),))


def _keep(n: int) -> Relation:
    return np.arange(n), np.arange(n), np.ones(n), n


def _shuffle(n: int, rng: np.random.Generator) -> Relation:
    return rng.permutation(n), np.arange(n), np.ones(n), n


def _widen(n: int, rng: np.random.Generator) -> Relation:
    """Copies of some channels, everything in a new order; whoever reads a copied channel reads half of each."""
    copied = rng.choice(n, max(1, n // 8), replace=False)
    source = np.concatenate([np.arange(n), copied])
    read = 1.0 / np.bincount(source)[source]
    return rng.permutation(len(source)), source, read, len(source)
