"""Models of one architecture: their blueprints under the same names, or how they differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..blueprint import Blueprint, Space, trace_labels
from ..core.modules import named_tensors
from ..errors import MismatchError
from ..surgery import matching_spaces


def conformed(models: Sequence[nn.Module], blueprint: Blueprint, inputs: tuple[Any, ...]) -> list[Blueprint]:
    """One blueprint per model, all with the spaces of the last one's; models of its shapes share it.

    Args:
        models: the models.
        blueprint: the blueprint of the last model.
        inputs: example inputs, to trace models of other widths.
    """
    last = {name: tuple(t.shape) for name, t in named_tensors(models[-1]).items()}
    if last != dict(blueprint.shapes):
        name = next(n for n in {**last, **blueprint.shapes} if last.get(n) != blueprint.shapes.get(n))
        raise MismatchError(
            f"the blueprint belongs to another model: {name} has shape {last.get(name)} in the last model and "
            f"{blueprint.shapes.get(name)} in the blueprint; trace the last model"
        )
    found = []
    for k, model in enumerate(models[:-1]):
        shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
        _same_names(shapes, blueprint, k)
        _only_widths_differ(shapes, blueprint, k)
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
        differences = [f"it lacks {missing[0]} {blueprint.shapes[missing[0]]}"] if missing else []
        differences += [f"it has {extra[0]} {shapes[extra[0]]}, which the last model lacks"] if extra else []
        raise MismatchError(
            f"models[{k}] has a different architecture from the last model: {' and '.join(differences)} "
            f"({len(missing)} parameters missing, {len(extra)} more). "
            "Fusing needs the same modules under the same names."
        )


def _only_widths_differ(shapes: Mapping[str, tuple[int, ...]], blueprint: Blueprint, k: int) -> None:
    for name, shape in shapes.items():
        other = blueprint.shapes[name]
        if shape == other:
            continue
        difference = f"{name} has shape {shape} in models[{k}] and {other} in the last model"
        if len(shape) != len(other):
            raise MismatchError(f"{difference}: the architectures differ")
        for axis, (n, m) in enumerate(zip(shape, other, strict=True)):
            if n == m:
                continue
            bound = [s for s, _ in blueprint.axes.get(name, {}).get(axis, ())]
            if any("output" in s.reasons for s in bound):
                raise MismatchError(f"{difference}: the models have different output widths ({n} and {m})")
            if not bound:
                raise MismatchError(
                    f"{difference}: axis {axis} carries no hidden channels, so the models differ in their inputs or in "
                    "the size of a kernel; fused models must take the same inputs"
                )
            stiff = [s for s in bound if s.kind != "elastic"]
            if len(stiff) == len(bound):
                raise MismatchError(
                    f"{difference}: the space {stiff[0].name} is not elastic ({'; '.join(stiff[0].reasons)})"
                )


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
                difference = f"{where} with {name}={ours.get(name)}, and {theirs.get(name)} in the last model"
                raise MismatchError(f"{difference}: fuse models of the same code")
    _same_integers(model, last, k)


def _class_name(module: nn.Module) -> str:
    """The name of a module's class; parametrised modules each have a class of their own."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _settings(module: nn.Module) -> dict[str, str]:
    """What PyTorch's own modules say of themselves, without sizes."""
    if not type(module).__module__.startswith("torch.nn"):
        return {}
    found = dict(re.findall(r"(\w+)=(\([^)]*\)|[^,]+)", module.extra_repr()))
    sizes = ("in_features", "out_features", "num_features", "num_parameters", "groups", "normalized_shape")
    return {name: value for name, value in found.items() if name not in sizes}


def _same_integers(model: nn.Module, last: nn.Module, k: int) -> None:
    """Index tables and masks are part of the computation."""
    ours = dict(model.named_buffers())
    for name, theirs in last.named_buffers():
        mine = ours.get(name)
        if mine is None or theirs.is_floating_point() or mine.is_meta or name.endswith("num_batches_tracked"):
            continue
        if mine.shape != theirs.shape or not torch.equal(mine, theirs):
            raise MismatchError(f"the integer buffer {name} differs between models[{k}] and the last model")
