"""Models of one architecture: their blueprints under the same names, or how they differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from ..blueprint import Blueprint, Space, difference, digest, export, labelled, operations
from ..core.inputs import Inputs
from ..core.modules import named_tensors
from ..core.same_code import same_code
from ..errors import MismatchError
from ..surgery import matching_spaces


def conformed(models: Sequence[nn.Module], blueprint: Blueprint, inputs: Inputs) -> list[Blueprint]:
    """One blueprint per model, all with the spaces of the last one's; models of its shapes share it.

    Models that compute different things, other than by their widths, are refused.

    Args:
        models: the models.
        blueprint: the blueprint of the last model.
        inputs: example inputs, to compare what the models compute.
    """
    last = {name: tuple(t.shape) for name, t in named_tensors(models[-1]).items()}
    if last != dict(blueprint.shapes):
        name = next(n for n in {**last, **blueprint.shapes} if last.get(n) != blueprint.shapes.get(n))
        raise MismatchError(
            f"the blueprint belongs to another model: {name} has shape {last.get(name)} in the last model and "
            f"{blueprint.shapes.get(name)} in the blueprint; trace the last model"
        )
    if not blueprint.code.is_of(models[-1]):
        _same_network(models[-1], blueprint, inputs)
    found: dict[int, Blueprint] = {id(models[-1]): blueprint}
    for k, model in enumerate(models[:-1]):
        if id(model) not in found:
            found[id(model)] = _conformed(model, models[-1], blueprint, inputs, k)
    return [found[id(model)] for model in models]


def _same_network(model: nn.Module, blueprint: Blueprint, inputs: Inputs) -> None:
    """The last model must compute what the blueprint says. It may have been traced with a batch of another size; then
    every channel must be where the blueprint has it."""
    names = "the last model", "the blueprint"
    program = export(model, inputs)
    ours = operations(program)
    if difference(ours, blueprint.operations, same_shapes=True, names=names) is None:
        return
    differs = difference(ours, blueprint.operations, same_shapes=False, names=names)
    if differs is None and not _same_places(labelled(program), blueprint):
        differs = "its channels are elsewhere"
    if differs is not None:
        raise MismatchError(f"the blueprint belongs to another model ({differs}): trace the last model")


def _same_places(traced: Blueprint, blueprint: Blueprint) -> bool:
    """Whether every space has its channels at the same places of the same parameters, in whatever order."""
    found = matching_spaces(blueprint, traced)
    return all(s.name in found and _places(s) == _places(found[s.name]) for s in blueprint)


def _places(space: Space) -> set[tuple[object, ...]]:
    """Of every channel, its places on all axes of the space."""
    bound = sorted(space.bindings, key=lambda b: str(b.key))
    rows = zip(*(b.index.tolist() for b in bound), strict=True)
    return {tuple(map(tuple, row)) for row in rows}


def _conformed(model: nn.Module, last: nn.Module, blueprint: Blueprint, inputs: Inputs, k: int) -> Blueprint:
    """The blueprint of one model with the spaces of the last one's; it is exported, once, unless it is sure to compute
    what the last one does."""
    shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
    _same_names(shapes, blueprint, k)
    _only_widths_differ(shapes, blueprint, k)
    _same_modules(model, last, k)
    ours, theirs = named_tensors(model), named_tensors(last)
    same_constants(ours.__getitem__, theirs.__getitem__, last, blueprint, k)
    same_shapes = shapes == dict(blueprint.shapes)
    if same_shapes and same_code(model, last):
        return blueprint
    program = export(model, inputs)
    names = f"models[{k}]", "the last model"
    differs = difference(operations(program), blueprint.operations, same_shapes=same_shapes, names=names)
    if differs is not None and same_shapes:  # the blueprint may have been traced with a batch of another size
        differs = difference(operations(program), operations(export(last, inputs)), same_shapes=True, names=names)
    if differs is not None:
        raise MismatchError(f"{differs}: fuse models of the same code and the same settings")
    return blueprint if same_shapes else _renamed(labelled(program), blueprint, k)


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
            if any(s.is_output for s in bound):
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
    for space in blueprint:
        other = found[space.name]
        if space.blocks is not None and other.blocks is not None and space.step != other.step:
            raise MismatchError(
                f"{space.name} has {other.heads} heads (or groups) of {other.step} channels in models[{k}] and "
                f"{space.heads} of {space.step} in the last model: their number may differ, their size may not"
            )
    return replace(traced, spaces=tuple(_like(s, found[s.name]) for s in blueprint))


def _like(space: Space, other: Space) -> Space:
    by_key = {b.key: b for b in other.bindings}
    bindings = tuple(by_key[b.key] for b in space.bindings)
    return replace(other, name=space.name, kind=space.kind, reasons=space.reasons, bindings=bindings)


def _same_modules(model: nn.Module, last: nn.Module, k: int) -> None:
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


def same_constants(
    ours: Callable[[str], Tensor], theirs: Callable[[str], Tensor], last: nn.Module, blueprint: Blueprint, k: int
) -> None:
    """Buffers that belong to no channel, such as tables of positions and masks, are part of the computation.

    Args:
        ours: the tensor of a name in one model; nothing is compared that has no numbers.
        theirs: in the last model.
        last: the last model.
        blueprint: its blueprint.
        k: which model the one is.
    """
    for name in (n for n in named_tensors(last) if n in blueprint.constants & blueprint.used):
        one, other = ours(name), theirs(name)
        if one.is_meta or other.is_meta or digest(one) == digest(other):
            continue
        path, _, own = name.rpartition(".")
        kind = "buffer" if other.is_floating_point() else "integer buffer"
        where = f" of {path} ({type(last.get_submodule(path)).__name__})" if path else ""
        raise MismatchError(
            f"the {kind} {own}{where} differs between models[{k}] and the last model: it belongs to no channel, so it "
            "is part of what the models compute and is never averaged; build the models with the same settings, or "
            f"copy {name} from one to the other if that is what you mean"
        )
