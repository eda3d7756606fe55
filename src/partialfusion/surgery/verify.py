"""Checks on numbers: what the labels say of a model must hold when its channels are really moved."""

from __future__ import annotations

import copy
import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, Kind
from ..core.inputs import Inputs, run
from ..core.modules import named_tensors
from ..core.probes import probes
from ..core.progress import ProgressCallback, silent
from ..errors import TraceError
from ..kernels import Plan
from .apply import apply
from .elastic import Relation, bisect_failures, check_widths, plan_of
from .resize import resized

log = logging.getLogger(__name__)

# Largest deviation from the original outputs, relative to their largest entry. A wrong tie deviates by order one.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
HALF = (torch.bfloat16, torch.float16)
NOISE = 0.1
# Reorderings may differ from the original by this multiple of what rounding alone does, and never by more than the
# other number.
NOISE_FACTOR, MOST_NOISE = 30.0, 1e-3
REORDERINGS = 2
SHARES = 0.4, 0.6  # of the time of tracing that has passed before channels are reordered, and before spaces are widened
LARGE = 2**25  # numbers of a model that is checked in single precision first
PERIOD = 1_000_003  # random numbers of one tensor, at most; a prime
WITHOUT_NUMBERS = "widened model traces the same (meta device: no numbers)"  # what is checked of models without any


def verify(
    model: nn.Module, inputs: Inputs, blueprint: Blueprint, seed: int = 0, progress: ProgressCallback = silent
) -> Blueprint:
    """The blueprint with every space that fails a check demoted, and the reason named.

    Two checks, on a copy of the model with disturbed weights (zero-initialised branches would hide errors):
    reordering the channels of every space that is not rigid, and widening every elastic space by copies of some of
    its channels, must leave the outputs as they were. On the meta device there are no numbers: there the second check
    asks only that the widened model runs and traces to the same spaces.

    Rounding in a deep network must not be taken for an error, so both run in double precision. For a large model that
    takes much time and memory: it is checked in single precision first, and in double where that finds anything.
    """
    if _size(model) > LARGE:
        found, differed = _verified(model, inputs, blueprint, seed, torch.float32, progress)
        gc.collect()  # what torch.export leaves behind refers to the widened copy, and to itself
        if not differed:
            return found
    return _verified(model, inputs, blueprint, seed, torch.float64, progress)[0]


def _size(model: nn.Module) -> int:
    return sum(t.numel() for t in named_tensors(model).values() if not t.is_meta)


def _verified(
    model: nn.Module,
    inputs: Inputs,
    blueprint: Blueprint,
    seed: int,
    precision: torch.dtype,
    progress: ProgressCallback,
) -> tuple[Blueprint, bool]:
    """The blueprint after the checks in one precision, and whether outputs ever differed."""
    rng = np.random.default_rng(seed)
    on_meta = any(t.is_meta for t in named_tensors(model).values())
    if not on_meta and any(bool(t.isnan().any()) for t in run(model, inputs)):
        raise TraceError(
            f"{type(model).__name__} returns NaN for the example inputs of shapes {inputs.shapes}, which show nothing "
            "then: pass inputs like those that it was trained on"
        )
    progress("checking", SHARES[0])
    subject = model if on_meta else disturbed(model, blueprint.constants, seed)
    subject, inputs = (model, inputs) if on_meta else precise(subject, inputs, precision)
    references = [] if on_meta else _references(subject, inputs, seed)
    noise = 0.0 if on_meta else _rounding_noise(subject, references[0])

    differed = [False]

    def same(result: nn.Module) -> bool:
        found = all(close(run(result, x), expected, noise=noise) for x, expected in references)
        differed[0] |= not found
        return found

    def moves(spaces: Sequence[str]) -> bool:
        progress("reordering channels", SHARES[0])
        plans = (reordered(blueprint, spaces, rng) for _ in range(REORDERINGS))
        return all(same(apply([subject], [blueprint], plan, inputs).model) for plan in plans)

    if references:
        free = [s.name for s in blueprint if s.kind != "rigid"]
        blueprint = _demote(blueprint, bisect_failures(free, moves), "rigid", "reordering it changes the output")
    progress("widening spaces", SHARES[1])
    blueprint = check_widths(subject, blueprint, inputs, same, rng)
    how = WITHOUT_NUMBERS if on_meta else f"channels reordered and widened, outputs unchanged{_coarse(references)}"
    return replace(blueprint, checked=how), differed[0]


def _coarse(references: Sequence[Reference]) -> str:
    """What a check in half precision does not see, where the code insists on it."""
    types = {t.dtype for _, results in references for t in results}
    worst = max((t for t in types if t in HALF), key=lambda t: TOLERANCE[t], default=None)
    if worst is None:
        return ""
    name = str(worst).removeprefix("torch.")
    return f" (the code runs in {name} only: differences below {TOLERANCE[worst]:.0%} are not seen)"


def _rounding_noise(model: nn.Module, reference: Reference) -> float:
    """How far the outputs move when weights change in their last digits: code that computes in single precision
    whatever it is given rounds otherwise each time."""
    inputs, expected = reference
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in twin.parameters():
            for where, drawn in _drawn(torch.rand, parameter, generator):
                factor = drawn.sub(0.5).mul_(torch.finfo(torch.float32).eps).add_(1)
                parameter[where].mul_(factor.to(parameter.dtype))
    return max((deviation(a, b) for a, b in zip(run(twin, inputs), expected, strict=True)), default=0.0)


def precise(model: nn.Module, inputs: Inputs, precision: torch.dtype) -> tuple[nn.Module, Inputs]:
    """The model and its inputs in another precision; code that insists on its own type runs as it is."""

    def cast(value: Any) -> Any:
        return value.to(precision) if isinstance(value, Tensor) and value.is_floating_point() else value

    if all(t.dtype == precision for t in named_tensors(model).values() if t.is_floating_point()):
        return model, inputs.map(cast)
    precise = copy.deepcopy(model).to(precision)
    wide = inputs.map(cast)
    try:
        outputs = run(precise, wide)
    except (RuntimeError, TypeError, ValueError):
        return model, inputs
    return (precise, wide) if all(t.dtype == precision for t in outputs if t.is_floating_point()) else (model, inputs)


Reference = tuple[Inputs, list[Tensor]]  # inputs and results


def _references(model: nn.Module, inputs: Inputs, seed: int) -> list[Reference]:
    """The model's outputs on the example inputs and on others at random.

    Example inputs may be zeros, or so few that most of the network is silent.
    """
    results = run(model, inputs)
    if not close(run(model, inputs, seed=1), results):
        raise TraceError(
            f"{type(model).__name__} gives different outputs each time it runs in evaluation mode; pass "
            "training=self.training to functional dropout, and draw nothing at random in forward"
        )
    return [(inputs, results), *probes(model, inputs, seed)]


def close(outputs: Sequence[Tensor], reference: Sequence[Tensor], *, noise: float = 0.0) -> bool:
    """Whether two lists of results agree to the precision of their type, or to a multiple of their noise."""

    def agree(a: Tensor, b: Tensor) -> bool:
        largest = max(TOLERANCE.get(b.dtype, 1e-4), min(NOISE_FACTOR * noise, MOST_NOISE))
        return a.shape == b.shape and deviation(a, b) <= largest

    return all(agree(a, b) for a, b in zip(outputs, reference, strict=True))


def deviation(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest finite entry of b; infinite where only one of them is not finite."""
    differ = (a != b) & ~(a.isnan() & b.isnan())
    if not bool(differ.any()):
        return 0.0
    scale = b[torch.isfinite(b)].double().abs().amax() if bool(torch.isfinite(b).any()) else torch.ones(())
    gap = (a[differ].double() - b[differ].double()).abs().max() / scale.clamp_min(1e-30)
    return float(gap) if bool(torch.isfinite(gap)) else float("inf")


def _demote(blueprint: Blueprint, names: Sequence[str], kind: Kind, reason: str) -> Blueprint:
    return blueprint.demote(dict.fromkeys(names, reason), kind) if names else blueprint


def disturbed(model: nn.Module, constants: frozenset[str], seed: int) -> nn.Module:
    """A copy with noise on every parameter, relative to its size; what belongs to no channel stays."""
    generator = torch.Generator("cpu").manual_seed(seed)
    tensors = named_tensors(model)
    twin = resized(model, {name: tuple(t.shape) for name, t in tensors.items() if name not in constants})
    with torch.no_grad():
        for name, target in named_tensors(twin).items():
            if not target.is_floating_point() or name in constants:
                continue
            source = tensors[name].detach()
            source = source if source.numel() > PERIOD and source.dtype == torch.float32 else source.double()
            scale = float(source.norm()) / math.sqrt(max(1, source.numel()))
            positive = isinstance(tensors[name], nn.Parameter) is False and bool((source >= 0).all())
            for where, drawn in _drawn(torch.randn, source, generator):
                value = source[where].add(drawn, alpha=NOISE * (scale or 1.0))
                target[where] = value.abs() if positive else value
    return twin


def _drawn(
    draw: Callable[..., Tensor], like: Tensor, generator: torch.Generator
) -> Iterator[tuple[EllipsisType | slice, Tensor]]:
    """Random numbers for every part of a tensor, on its device and in at least single precision: where, and which; they
    are only read.

    A large tensor comes in parts, and its numbers repeat after a prime number of entries: rows and columns differ all
    the same.
    """
    precision = torch.promote_types(like.dtype, torch.float32)
    if like.numel() <= PERIOD:
        yield ..., draw(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like.device, precision)
        return
    cycle = draw((PERIOD,), generator=generator, dtype=precision, device="cpu").to(like.device)
    row = like[0].numel()
    rows = max(1, PERIOD // row)
    cycles = cycle.repeat(2 + rows * row // PERIOD)  # enough for a part that begins anywhere in the first
    for first in range(0, len(like), rows):
        part = like[first : first + rows]
        start = first * row % PERIOD
        yield slice(first, first + rows), cycles[start : start + part.numel()].view(part.shape)


def reordered(blueprint: Blueprint, spaces: Sequence[str], rng: np.random.Generator) -> Plan:
    """A plan for one model that moves every channel of the named spaces, and every block with its bundle."""
    relations: dict[str, Relation] = {}
    orders: dict[str, np.ndarray] = {}
    for name in spaces:
        space = blueprint[name]
        n = space.width
        order = _deranged(n, rng)
        if space.blocks is not None and space.bundle is not None:
            heads = orders.setdefault(space.bundle, _deranged(space.heads, rng))
            groups = [np.flatnonzero(space.blocks == h) for h in range(len(heads))]
            for h, group in enumerate(groups):
                inner = _deranged(len(group), rng) if len(groups) == 1 else rng.permutation(len(group))
                order[group] = groups[heads[h]][inner]
        relations[name] = order, np.arange(n), np.ones(n), n
    return plan_of(blueprint, relations)


def _deranged(n: int, rng: np.random.Generator) -> np.ndarray:
    """A random order of n things in which none keeps its place: one cycle through all of them."""
    cycle = rng.permutation(n)
    order = np.empty(n, np.int64)
    order[cycle] = np.roll(cycle, 1)
    return order
