"""Stored fusions: a fused model in a file without its zero blocks, with the plan and where it came from.

A file is safetensors. Every parameter and buffer of the fused model is one tensor under its name: whole, or, where
blocks of it are zero, the entries of the other blocks one after the other. Where the models were rotated before they
were fused, the rotations follow. The header holds the plan, the recipe, hashes of the sources and of the content, and
versions. Nothing is pickled, so loading runs no code.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..blueprint import NormLayer
from ..core.alone import alone
from ..core.modules import first_line, inside, named_tensors
from ..core.plain import holding
from ..core.version import __version__
from ..errors import CheckpointError, OptionError
from ..fusing.validation import check_result
from ..kernels import Plan
from ..rotation import Rotations
from ..surgery.apply import target_shapes
from ..surgery.config import follow_config
from ..surgery.numbers import numbers_of, set_number
from ..surgery.resize import resized
from ..surgery.views import place_views, view_layers
from .digest import digest, state_digest
from .files import DTYPES, SUFFIX, StrPath, check_target, existing, reading, replacing, write_tensors
from .fit import check_kind, check_memory, differences
from .header import VIEWS, Integers, Source, Stored, damaged, filled_by_refit, from_file, to_metadata
from .packing import Packing, packed, plan_packings
from .rotations import named as named_rotations
from .shards import Shards, contents, opened

if TYPE_CHECKING:
    from ..fusing.result import Fusion

log = logging.getLogger(__name__)

# The numbers of a fusion without its zero blocks are at most so many times fewer; 55 is the most found, for eight
# networks that are wide where the others are narrow. Small files may claim any ratio.
DENSE_RATIO, LEAST = 128, 1 << 24
NARROW = (torch.float16, torch.bfloat16, torch.float32)


@alone
def save(result: Fusion, path: StrPath, *, dtype: torch.dtype | None = None) -> None:
    """Write a fusion to a file, completely or not at all: an older file stays until the new one is on the disk.

    From about a million parameters on, the file has the size of the effective parameters, within two per cent; for
    smaller models the header of some kilobytes counts too.

    Args:
        result: what `fuse`, `prune` or `refit` returned; its model may have been trained since. Parameters whose
            zero blocks hold numbers, from refitting with zeros="free" or from training, are stored whole.
        path: the file to write; its name ends in .safetensors.
        dtype: the precision for parameters that are wider: torch.float16, torch.bfloat16 or torch.float32. Buffers,
            such as the statistics of batch norms, keep theirs: they are small, and sensitive.
    """
    check_result(result)
    path = check_target(path, suffixes=(SUFFIX,))
    norms = {p: norm for p, norm in view_layers(result.model).items() if p in result.blueprint.norm_layers}
    modules = dict(result.model.named_modules())
    views = {inside(p, name): tuple(getattr(modules[p], name).shape) for p in norms for name in VIEWS}
    if dtype is not None and dtype not in NARROW:
        raise OptionError(f"dtype={dtype} is not known: choose one of {', '.join(map(str, NARROW))}, or None")
    tensors = _tensors(
        result.model,
        {**target_shapes(result.blueprint, result.plan), **views},
        "the plan: the model was changed after it was fused; save it before changing its modules, or save its state "
        "dict",
    )
    _write(
        path,
        tensors,
        plan_packings(tensors, blueprint=result.blueprint, layout=result.layout, plan=result.plan),
        dtype,
        model=type(result.model).__name__,
        recipe=asdict(result.recipe),
        sources=tuple(Source(type(m).__name__, state_digest(m)) for m in result.sources),
        plan=result.plan,
        integers=integers_of(result.model),
        norms=norms,
        rotations=result.rotations,
    )


def resave(stored: Stored, model: nn.Module, path: StrPath, *, dtype: torch.dtype | None = None) -> None:
    """Write a fused model again with the plan, recipe and sources of an earlier file, completely or not at all.

    Args:
        stored: what `inspect` returned for the earlier file.
        model: a model with the shapes in that file, such as the fused model after training. Parameters whose zero
            blocks hold numbers by now are stored whole.
        path: the file to write; its name ends in .safetensors.
        dtype: the precision for parameters that are wider; buffers keep theirs.
    """
    path = check_target(path, suffixes=(SUFFIX,))
    tensors = _tensors(
        model,
        {name: how.shape for name, how in stored.packings.items()},
        "the fusion whose plan is used: pass the file that the model was loaded from",
    )
    _write(
        path,
        tensors,
        stored.packings,
        dtype,
        model=stored.model,
        recipe=stored.recipe,
        sources=stored.sources,
        plan=stored.plan,
        integers=stored.integers,
        norms=stored.norms,
        rotations=stored.rotations,
    )


def _write(
    path: Path,
    tensors: Mapping[str, Tensor],
    packings: Mapping[str, Packing],
    dtype: torch.dtype | None,
    *,
    model: str,
    recipe: Mapping[str, Any],
    sources: tuple[Source, ...],
    plan: Plan,
    integers: Integers,
    norms: Mapping[str, NormLayer],
    rotations: Rotations | None,
) -> None:
    """Pack the tensors, narrow the parameters among them, and write them with their header."""
    used: dict[str, Packing] = {}
    contents: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, how, content in packed(packings, tensors, expected=filled_by_refit(recipe)):
            used[name] = how
            contents[name] = narrowed(
                name, content.detach(), dtype if isinstance(tensors[name], nn.Parameter) else None
            )
    header = Stored(
        model=model,
        recipe=recipe,
        sources=sources,
        plan=plan,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        version=__version__,
        torch=str(torch.__version__),
        packings=used,
        integers=integers,
        norms=norms,
        payload=digest(contents.items()),
        rotations=rotations,
    )
    with replacing(path) as file:
        write_tensors(file, {**contents, **named_rotations(rotations)}, to_metadata(header))


@alone
def load(path: StrPath, *, into: nn.Module) -> nn.Module:
    """The fused model of a file: a copy of `into` with the widths and numbers of the file.

    Args:
        path: a file that `save` wrote.
        into: an instance of the class that was fused, with any widths; it is not changed. The result has its
            precision, device, training mode and gradient flags, whatever the precision of the file.
    """
    path = existing(path)
    if not isinstance(into, nn.Module):
        raise OptionError(f"into is a {type(into).__name__}, not a torch.nn.Module: pass an instance of the model")
    with opened(path) as (file, stored):
        _check_tensors(file, stored, path)
        into = holding(into, stored.packings)
        _check_fits(stored, into, path)
        result = _with_views(_resized(into, stored, path), stored, path)
        _fill(result, file, stored, path)
    _set_integers(result, stored)
    follow_config(result, into)
    return result


def load_dense(path: StrPath) -> dict[str, Tensor]:
    """Name → dense tensor of a stored fusion; a tied tensor appears once."""
    path = existing(path)
    found: dict[str, Tensor] = {}
    with opened(path) as (file, stored):
        _check_tensors(file, stored, path)
        for name, content in contents(file, stored, path):
            found[name] = content.new_empty(stored.packings[name].shape)
            stored.packings[name].unpack(content, found[name])
    return found


def inspect(path: StrPath) -> Stored:
    """The recipe, plan, sources and versions of a stored fusion, and how its sources were rotated; the weights are not
    read."""
    path = existing(path)
    with reading(path) as file:
        return from_file(file, path)


def load_plan(path: StrPath) -> Plan:
    """The plan of a stored fusion, exactly as it was saved; applied to the same sources it gives the same model. Where
    they were rotated first, it applies to the rotated ones: `restore(...).equivalents`.

    Only the dense read kernels of interpolation are not in the file: they may be larger than the model. Such a plan
    shows which channels were kept, and serves `restore`, refit and blocks, but cannot be applied again.
    """
    return inspect(path).plan


def _tensors(model: nn.Module, expected: Mapping[str, tuple[int, ...]], other: str) -> dict[str, Tensor]:
    """The parameters and buffers of a fused model, once they are known to have the expected shapes.

    Args:
        model: the fused model.
        expected: name → shape.
        other: what expects these shapes, and what to do, for the message.
    """
    tensors = named_tensors(model)
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    for name in {**expected, **shapes}:
        if expected.get(name) != shapes.get(name):
            raise CheckpointError(
                f"{name} has shape {shapes.get(name)} in the model and {expected.get(name)} in {other}"
            )
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device and holds no numbers; save a model that has memory")
        if tensor.dtype not in DTYPES:
            raise CheckpointError(
                f"{name} has type {tensor.dtype}, which cannot be stored; convert it to one of "
                f"{', '.join(str(d).removeprefix('torch.') for d in DTYPES)}"
            )
    return tensors


def narrowed(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A floating-point tensor in a narrower type, if its own is wider; an overflow is an error, not infinity."""
    if dtype is None or not tensor.is_floating_point() or tensor.element_size() <= dtype.itemsize:
        return tensor
    narrow = tensor.to(dtype)
    if bool((narrow.isinf() & ~tensor.isinf()).any()):
        largest = float(tensor.abs().max())
        raise OptionError(
            f"dtype={dtype}: {name} holds {largest:g}, which is out of range; try torch.bfloat16, or None"
        )
    return narrow


def _check_tensors(file: Shards, stored: Stored, path: Path) -> None:
    """The file must have the tensors that its header lists, and its header may not make much of few numbers."""
    if set(file.keys()) != {*stored.packings, *named_rotations(stored.rotations)}:
        raise CheckpointError(damaged(path, "its tensors are not those that its header lists"))
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in stored.packings}
    numbers = sum(math.prod(shape) for shape in shapes.values())
    if sum(math.prod(how.shape) for how in stored.packings.values()) > max(LEAST, DENSE_RATIO * numbers):
        raise CheckpointError(damaged(path, f"its header lists far larger tensors than its {numbers} numbers can fill"))
    for name, how in stored.packings.items():
        if shapes[name] != how.stored_shape:
            raise CheckpointError(damaged(path, f"{name} has shape {shapes[name]}, not {how.stored_shape}"))


def _check_fits(stored: Stored, model: nn.Module, path: Path) -> None:
    """The model must have the tensors of the file, and may differ only in the lengths of elastic axes."""
    check_memory(model, path)
    views = {inside(place, name) for place in stored.norms for name in VIEWS}
    tensors = {name: t for name, t in named_tensors(model).items() if name not in views}
    found = differences(
        {name: how for name, how in stored.packings.items() if name not in views},
        tensors,
        fits=lambda name: _same_but_for_widths(stored.packings[name], tensors[name]),
    )
    if found:
        raise CheckpointError(
            f"{path} does not fit {type(model).__name__}: {found}. Pass a {stored.model} as it was fused; "
            "only the widths of elastic spaces may differ"
        )


def _resized(model: nn.Module, stored: Stored, path: Path) -> nn.Module:
    """A copy of a model with the shapes of the file, not yet filled."""
    try:
        return resized(model, {name: how.shape for name, how in stored.packings.items()})
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: {type(model).__name__} could not be copied with the widths of the file: {first_line(error)}; "
            f"pass a newly built {stored.model}"
        ) from error


def _with_views(model: nn.Module, stored: Stored, path: Path) -> nn.Module:
    """The model with norms with views where the file has them, not yet filled."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for place, norm in stored.norms.items():
        kinds: dict[str, type] = {name: Tensor for name in (norm.weight, norm.bias) if name is not None}
        kinds |= dict.fromkeys(norm.then, nn.Module)
        module = modules.get(place)
        if module is None or not all(isinstance(getattr(module, name, None), kind) for name, kind in kinds.items()):
            raise CheckpointError(
                f"{path} does not fit {type(model).__name__}: there is no norm {place}; pass a {stored.model} as it "
                "was fused"
            )
    shapes = {place: stored.packings[inside(place, VIEWS[0])].shape for place in stored.norms}
    empty = {place: (torch.full(s, 1 / s[1]), torch.full(s, 1 / s[0])) for place, s in shapes.items()}
    return place_views(model, stored.norms, empty)


def _same_but_for_widths(how: Packing, tensor: Tensor) -> bool:
    """Only floating-point tensors follow the widths: index tables and counters must have the stored shape."""
    elastic = how.elastic if tensor.is_floating_point() else ()
    return len(how.shape) == tensor.dim() and all(
        n == m or axis in elastic for axis, (n, m) in enumerate(zip(how.shape, tensor.shape, strict=True))
    )


def _fill(model: nn.Module, file: Shards, stored: Stored, path: Path) -> None:
    """Fill every tensor of the model from the file, one at a time."""
    targets = named_tensors(model)
    with torch.no_grad():
        for name, content in contents(file, stored, path):
            target, remedy = targets[name], f"pass a {stored.model} as it was fused"
            check_kind(path, name, content, target, remedy=remedy, same_integers=True)
            stored.packings[name].unpack(content, target)


def integers_of(model: nn.Module) -> dict[str, dict[str, int]]:
    """Integer attributes of the user's own modules; PyTorch's modules follow their weights, if they have any."""
    found = {}
    for path, module in model.named_modules():
        bare = isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and module.weight is None
        if bare or not type(module).__module__.startswith("torch.nn"):
            values = numbers_of(module)
            if values:
                found[path] = values
    return found


def _set_integers(model: nn.Module, stored: Stored) -> None:
    """Restore integer attributes, which may repeat widths; only those that the module has already are set."""
    modules = dict(model.named_modules())
    for path, values in stored.integers.items():
        for name, value in values.items():
            held = numbers_of(modules[path]).get(name) if path in modules else None
            if held is not None and held != value:
                log.debug("%s.%s set from %d to %d", path, name, held, value)
                set_number(modules[path], name, value)
