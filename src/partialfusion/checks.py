"""Checks of what the user passes in: one clear error before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .blueprint import Blueprint, Space, named_tensors, trace_labels
from .errors import MismatchError, OptionError
from .surgery import matching_spaces


def check_models(models: Sequence[nn.Module]) -> None:
    """Two or more modules whose numbers can be averaged."""
    if isinstance(models, nn.Module) or not isinstance(models, Sequence):
        raise OptionError("models must be a list of two or more modules: pf.fuse([model_a, model_b], …)")
    if len(models) < 2:
        raise OptionError(f"fusing needs two or more models, got {len(models)}")
    for k, model in enumerate(models):
        if not isinstance(model, nn.Module):
            raise OptionError(f"models[{k}] is a {type(model).__name__}, not a torch.nn.Module")
        check_tensors(model, f"models[{k}]")


def check_tensors(model: nn.Module, what: str) -> None:
    """Parameters must be finite real numbers."""
    tensors = named_tensors(model)
    if not tensors:
        raise OptionError(f"{what} ({type(model).__name__}) has no parameters")
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise OptionError(f"{what}: {name} is not initialised yet; run the model once on real inputs first")
        shape = tuple(tensor.shape)
        if tensor.is_complex():
            raise OptionError(f"{what}: {name} {shape} is complex; only real parameters can be fused")
        if tensor.is_quantized or (isinstance(tensor, nn.Parameter) and not tensor.is_floating_point()):
            raise OptionError(
                f"{what}: {name} {shape} is quantised ({tensor.dtype}); fuse the original floating-point models and "
                "quantise the result"
            )
        if tensor.is_floating_point() and not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise OptionError(f"{what}: {name} {shape} holds {bad} NaN or infinite values; load a sound checkpoint")
    _check_quantized_modules(model, what)


def _check_quantized_modules(model: nn.Module, what: str) -> None:
    """Quantised modules keep packed weights outside their parameters."""
    for path, module in model.named_modules():
        if "quantized" in type(module).__module__:
            raise OptionError(
                f"{what}: {path} is a quantised {type(module).__name__}; fuse the original floating-point models and "
                "quantise the result"
            )


def check_mix(mix: Sequence[float] | None, models: int) -> tuple[float, ...]:
    """The shares of the models as numbers."""
    if mix is None:
        return (1.0 / models,) * models
    shares = tuple(float(w) for w in mix)
    if len(shares) != models:
        raise OptionError(f"mix={list(shares)} has {len(shares)} shares for {models} models")
    if any(not math.isfinite(w) or w < 0 for w in shares) or abs(sum(shares) - 1) > 1e-6:
        raise OptionError(f"mix={list(shares)} must be non-negative and sum to one, its sum is {sum(shares):g}")
    return tuple(w / sum(shares) for w in shares)


def check_alpha(alpha: float | Mapping[str, float], blueprint: Blueprint, *, partial: bool) -> dict[str, float]:
    """Elastic space → isolated share."""
    elastic = [s.name for s in blueprint if s.kind == "elastic"]
    if isinstance(alpha, Mapping):
        values = dict.fromkeys(elastic, 0.0)
        for pattern in reversed(list(alpha)):
            matched = [s for s in elastic if fnmatchcase(s, pattern)]
            if not matched:
                raise OptionError(
                    f"alpha: no elastic space matches {pattern!r}; the elastic spaces are {', '.join(elastic)}"
                )
            values.update(dict.fromkeys(matched, float(alpha[pattern])))
    else:
        values = dict.fromkeys(elastic, float(alpha))
    for space, value in values.items() or [("all", float(alpha) if not isinstance(alpha, Mapping) else 0.0)]:
        if not 0.0 <= value <= 1.0:
            raise OptionError(f"alpha={value} for {space} is out of range: it is a share, 0 (fused) … 1 (ensemble)")
        if not partial and value not in (0.0, 1.0):
            raise OptionError(
                f"alpha={value} for {space}: this method fuses every channel of a space; use method='partial-ot', or "
                "alpha=1 for spaces to keep apart"
            )
    return values


def conformed(
    models: Sequence[nn.Module], blueprint: Blueprint, inputs: tuple[Any, ...], *, equal: bool
) -> list[Blueprint]:
    """One blueprint per model, all with the spaces of the last one's; models of its shapes share it.

    Args:
        models: the models.
        blueprint: of the last model.
        inputs: example inputs, to trace models of other widths.
        equal: whether the method needs equal widths.
    """
    last = {name: tuple(t.shape) for name, t in named_tensors(models[-1]).items()}
    if last != dict(blueprint.shapes):
        name = next(n for n in {**last, **blueprint.shapes} if last.get(n) != blueprint.shapes.get(n))
        raise MismatchError(
            f"the blueprint is of another model: {name} has shape {last.get(name)} in the last model and "
            f"{blueprint.shapes.get(name)} in the blueprint; trace the last model"
        )
    found = []
    for k, model in enumerate(models[:-1]):
        shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
        _same_names(shapes, blueprint, k)
        if shapes == dict(blueprint.shapes):
            found.append(blueprint)
            continue
        _only_widths_differ(shapes, blueprint, k, equal)
        found.append(_renamed(trace_labels(model, inputs), blueprint, k))
    return [*found, blueprint]


def _same_names(shapes: Mapping[str, tuple[int, ...]], blueprint: Blueprint, k: int) -> None:
    missing = [n for n in blueprint.shapes if n not in shapes]
    extra = [n for n in shapes if n not in blueprint.shapes]
    if missing or extra:
        told = [f"it lacks {missing[0]} {blueprint.shapes[missing[0]]}"] if missing else []
        told += [f"it has {extra[0]} {shapes[extra[0]]}, which the last model lacks"] if extra else []
        raise MismatchError(
            f"models[{k}] is of another architecture than the last model: {' and '.join(told)} "
            f"({len(missing)} parameters missing, {len(extra)} more). "
            "Fusing needs the same modules under the same names."
        )


def _only_widths_differ(shapes: Mapping[str, tuple[int, ...]], blueprint: Blueprint, k: int, equal: bool) -> None:
    for name, shape in shapes.items():
        other = blueprint.shapes[name]
        if shape == other:
            continue
        told = f"{name} has shape {shape} in models[{k}] and {other} in the last model"
        if equal:
            raise MismatchError(f"{told}: this method needs equal widths; use method='ot' or 'partial-ot'")
        if len(shape) != len(other):
            raise MismatchError(f"{told}: the architectures differ")
        for axis, (n, m) in enumerate(zip(shape, other, strict=True)):
            if n == m:
                continue
            bound = [s for s, _ in blueprint.axes.get(name, {}).get(axis, ())]
            if any("output" in s.reasons for s in bound):
                raise MismatchError(f"{told}: the models have different output widths ({n} and {m})")
            if not bound:
                raise MismatchError(
                    f"{told}: axis {axis} carries no hidden channels, so the models differ in their inputs or in the "
                    "size of a kernel; fused models must take the same inputs"
                )
            stiff = [s for s in bound if s.kind != "elastic"]
            if len(stiff) == len(bound):
                raise MismatchError(f"{told}: the space {stiff[0].name} is not elastic ({'; '.join(stiff[0].reasons)})")


def _renamed(traced: Blueprint, blueprint: Blueprint, k: int) -> Blueprint:
    """A blueprint of other widths under the names, kinds and order of the last model's."""
    found = matching_spaces(blueprint, traced)
    lost = [s.name for s in blueprint if s.name not in found]
    if lost:
        raise MismatchError(f"models[{k}] does not have the spaces of the last model: {', '.join(lost)}")
    return replace(traced, spaces=tuple(_like(s, found[s.name]) for s in blueprint))


def _like(space: Space, other: Space) -> Space:
    by_key = {b.key: b for b in other.bindings}
    bindings = tuple(by_key[b.key] for b in space.bindings)
    return replace(other, name=space.name, kind=space.kind, reasons=space.reasons, bindings=bindings)
