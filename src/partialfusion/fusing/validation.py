"""Checks of what the user passes in: one clear error before anything is computed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..blueprint import Blueprint, Space, trace_labels
from ..core.modules import named_tensors
from ..errors import MismatchError, OptionError
from ..surgery import matching_spaces


def check_models(models: Sequence[nn.Module]) -> None:
    """Two or more modules whose numbers can be averaged."""
    if isinstance(models, nn.Module) or not isinstance(models, Sequence):
        raise OptionError("models must be a list of two or more modules: pf.fuse([model_a, model_b], …)")
    if len(models) < 2:
        raise OptionError(f"fusing needs two or more models, got {len(models)}")
    for k, model in enumerate(models):
        check_tensors(model, f"models[{k}]")
    _same_types(models)
    devices = {t.device for m in models for t in named_tensors(m).values()}
    if len(devices) > 1:
        told = ", ".join(sorted(map(str, devices)))
        raise OptionError(f"the models are on several devices ({told}): move them to one")


def _same_types(models: Sequence[nn.Module]) -> None:
    *others, last = (named_tensors(m) for m in models)
    for k, tensors in enumerate(others):
        for name, tensor in tensors.items():
            if name in last and tensor.is_floating_point() and tensor.dtype != last[name].dtype:
                raise OptionError(
                    f"{name} is {tensor.dtype} in models[{k}] and {last[name].dtype} in the last model: convert one"
                )


def check_result(result: Any) -> None:
    """What `fuse` or `prune` returned, not the model in it."""
    if not all(hasattr(result, name) for name in ("model", "plan", "layout")):
        raise OptionError(
            f"the result is a {type(result).__name__}: pass what fuse or prune returned, which holds the model and "
            "its plan"
        )


def check_tensors(model: nn.Module, what: str) -> None:
    """Parameters must be finite real numbers."""
    if not isinstance(model, nn.Module):
        raise OptionError(f"{what} is a {type(model).__name__}, not a torch.nn.Module")
    tensors = named_tensors(model)
    if not any(isinstance(t, nn.Parameter) for t in tensors.values()):
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
        counts = isinstance(tensor, nn.Parameter) or name.endswith(("running_mean", "running_var"))
        if counts and not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
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


def _same_computation(model: nn.Module, last: nn.Module, k: int) -> None:
    """Modules of the same classes with the same settings."""
    others = dict(last.named_modules())
    for path, module in model.named_modules():
        other = others.get(path)
        where = f"{path or 'the model'} is a {type(module).__name__} in models[{k}]"
        if other is None or _class_name(module) != _class_name(other):
            named = "missing" if other is None else f"a {type(other).__name__}"
            raise MismatchError(f"{where} and {named} in the last model: fuse models of the same code")
        ours, theirs = _settings(module), _settings(other)
        for name in ours.keys() | theirs.keys():
            if ours.get(name) != theirs.get(name):
                told = f"{where} with {name}={ours.get(name)}, and {theirs.get(name)} in the last model"
                raise MismatchError(f"{told}: fuse models of the same code")
    _same_integers(model, last, k)


def _class_name(module: nn.Module) -> str:
    """By name, for parametrised modules have a class of their own each."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _settings(module: nn.Module) -> dict[str, str]:
    """What PyTorch's own modules say of themselves, without sizes."""
    if not type(module).__module__.startswith("torch.nn"):
        return {}
    told = dict(re.findall(r"(\w+)=(\([^)]*\)|[^,]+)", module.extra_repr()))
    sizes = ("in_features", "out_features", "num_features", "num_parameters", "groups", "normalized_shape")
    return {name: value for name, value in told.items() if name not in sizes}


def _same_integers(model: nn.Module, last: nn.Module, k: int) -> None:
    """Index tables and masks are part of the computation."""
    ours = dict(model.named_buffers())
    for name, theirs in last.named_buffers():
        own = ours.get(name)
        if own is None or theirs.is_floating_point() or own.is_meta or name.endswith("num_batches_tracked"):
            continue
        if own.shape != theirs.shape or not torch.equal(own, theirs):
            raise MismatchError(f"the integer buffer {name} differs between models[{k}] and the last model")


def check_mix(mix: Sequence[Any] | None, models: int) -> tuple[float, ...]:
    """The shares of the models as numbers."""
    if mix is None:
        return (1.0 / models,) * models
    try:
        shares = tuple(float(w) for w in mix)
    except (TypeError, ValueError):
        raise OptionError(f"mix={mix!r} must be a list of numbers, one for each model") from None
    if len(shares) != models:
        raise OptionError(f"mix={list(shares)} has {len(shares)} shares for {models} models")
    if any(not math.isfinite(w) or w < 0 for w in shares) or abs(sum(shares) - 1) > 1e-6:
        raise OptionError(f"mix={list(shares)} must be non-negative and sum to one, its sum is {sum(shares):g}")
    return tuple(w / sum(shares) for w in shares)


def check_alpha(alpha: float | Mapping[str, float], blueprint: Blueprint, *, partial: bool) -> dict[str, float]:
    """Elastic space → isolated share."""
    values = _per_space("alpha", alpha, blueprint, default=0.0)
    for space, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise OptionError(f"alpha={value} for {space} is out of range: it is a share, 0 (fused) … 1 (ensemble)")
        if not partial and value not in (0.0, 1.0):
            raise OptionError(
                f"alpha={value} for {space}: this method fuses every channel of a space; use method='partial-ot', or "
                "alpha=1 for spaces to keep apart"
            )
    return values


def check_keep(keep: float | Mapping[str, float], blueprint: Blueprint) -> dict[str, float]:
    """Elastic space → share of its channels that is left."""
    values = _per_space("keep", keep, blueprint, default=1.0)
    for space, value in values.items():
        if not 0.0 < value <= 1.0:
            raise OptionError(f"keep={value} for {space} is out of range: it is a share, above 0 … 1 (all channels)")
    return values


def _per_space(
    option: str, given: float | Mapping[str, float], blueprint: Blueprint, *, default: float
) -> dict[str, float]:
    """Elastic space → number, from one number or from patterns, of which the first that matches counts."""
    elastic = [s.name for s in blueprint if s.kind == "elastic"]
    if not isinstance(given, Mapping):
        return dict.fromkeys(elastic or ["all"], _number(option, given))
    values = dict.fromkeys(elastic, default)
    for pattern in reversed(list(given)):
        matched = [s for s in elastic if fnmatchcase(s, pattern)]
        if not matched:
            stiff = [s for s in blueprint if fnmatchcase(s.name, pattern)]
            why = f" ({stiff[0].name} is {stiff[0].kind}: {'; '.join(stiff[0].reasons)})" if stiff else ""
            raise OptionError(
                f"{option}: no elastic space matches {pattern!r}{why}; the elastic spaces are {', '.join(elastic)}"
            )
        values.update(dict.fromkeys(matched, _number(option, given[pattern])))
    return values


def _number(option: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"{option}={value!r} must be a number, or a mapping from space names to numbers")
    return float(value)


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
        _only_widths_differ(shapes, blueprint, k, equal)
        _same_computation(model, models[-1], k)
        if shapes == dict(blueprint.shapes):
            found.append(blueprint)
            continue
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
