"""Fused models in files: only what is not zero is stored, with the plan and where it all came from.

A file is safetensors. Every parameter and buffer of the fused model is one tensor under its name: whole, or, where
blocks of it are zero, the entries of the other blocks one after the other. The header holds the plan, the
recipe, hashes of the sources and of the content, and versions. Nothing is pickled, so loading runs no code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.modules import first_line, named_tensors
from ..core.text import shorten
from ..errors import CheckpointError, OptionError
from ..fusing.validation import check_result
from ..kernels import Plan
from ..surgery.apply import target_shapes
from ..surgery.resize import resized
from .digest import Digest, digest, state_digest
from .files import DTYPES, StrPath, existing, reading, replacing, writable, write_tensors
from .header import Source, Stored, damaged, from_metadata, to_metadata
from .packing import Packing, packed

if TYPE_CHECKING:
    from ..fusing.result import Fusion

log = logging.getLogger(__name__)

NARROW = (torch.float16, torch.bfloat16, torch.float32)


def save(result: Fusion, path: StrPath, *, dtype: torch.dtype | None = None) -> None:
    """Write a fusion to a file, whole or not at all: until all of it is on the disk, an older file stays.

    From about a million parameters on the file has the size of the effective parameters, within two per cent; smaller
    models pay for a header of some kilobytes.

    Args:
        result: what `fuse` returned; its model may have been trained since. Parameters that have come to hold
            numbers in their zero blocks are stored whole.
        path: ends in .safetensors.
        dtype: store parameters that are wider than this in it: torch.float16, torch.bfloat16 or torch.float32.
            Buffers, such as statistics of batch norms, keep their precision: they are small, and matter.
    """
    check_result(result)
    path = writable(path)
    if dtype is not None and dtype not in NARROW:
        raise OptionError(f"dtype={dtype} is not known: choose one of {', '.join(map(str, NARROW))}, or None")
    tensors = _tensors(result)
    packings: dict[str, Packing] = {}
    contents: dict[str, Tensor] = {}
    with torch.no_grad():
        found = packed(tensors, blueprint=result.blueprint, layout=result.layout, plan=result.plan)
        for name, how, stored in found:
            packings[name] = how
            narrow = dtype if isinstance(tensors[name], nn.Parameter) else None
            contents[name] = narrowed(name, stored.detach(), narrow)
    header = _header(result, packings, contents, dtype)
    with replacing(path) as file:
        write_tensors(file, contents, to_metadata(header))


def load(path: StrPath, *, into: nn.Module) -> nn.Module:
    """The fused model of a file, as a copy of `into` with the widths and numbers of the file.

    Args:
        path: a file that `save` wrote.
        into: an instance of the class that was fused, of any widths; it is left as it is. The result has its
            precision, its device, its mode and its gradient flags, whatever the file was stored in.
    """
    path = existing(path)
    if not isinstance(into, nn.Module):
        raise OptionError(f"into is a {type(into).__name__}, not a torch.nn.Module: pass an instance of the model")
    with reading(path) as file:
        stored = from_metadata(file.metadata(), path)
        _check_names(file.keys(), stored, path)
        _check_fits(stored, into, path)
        result = _resized(into, stored, path)
        _fill(result, file, stored, path)
    _set_integers(result, stored)
    return result


def load_dense(path: StrPath) -> dict[str, Tensor]:
    """Name → tensor of a stored fusion, zero blocks filled in; a tied tensor appears once."""
    path = existing(path)
    found: dict[str, Tensor] = {}
    with reading(path) as file:
        stored = from_metadata(file.metadata(), path)
        _check_names(file.keys(), stored, path)
        for name, content in _contents(file, stored, path):
            found[name] = content.new_empty(stored.packings[name].shape)
            stored.packings[name].unpack(content, found[name])
    return found


def inspect(path: StrPath) -> Stored:
    """What a stored fusion says of itself: recipe, plan, sources, versions. Reads the header only."""
    path = existing(path)
    with reading(path) as file:
        return from_metadata(file.metadata(), path)


def load_plan(path: StrPath) -> Plan:
    """The plan of a stored fusion, exactly as it was; applied to the same sources it makes the same model."""
    return inspect(path).plan


def _tensors(result: Fusion) -> dict[str, Tensor]:
    """The parameters and buffers of a fused model, which must still be those that the plan made."""
    tensors = named_tensors(result.model)
    expected = target_shapes(result.blueprint, result.plan)
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    for name in {**expected, **shapes}:
        if expected.get(name) != shapes.get(name):
            raise CheckpointError(
                f"the model was changed after it was fused: {name} has shape {shapes.get(name)}, and the plan gives "
                f"{expected.get(name)}; save it before changing its modules, or save its state dict"
            )
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device and holds no numbers; fuse models that hold some")
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{name} is of type {tensor.dtype}, which safetensors files cannot hold here")
    return tensors


def narrowed(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor in a narrower type, if it is of a wider one; out of its range is an error rather than infinite."""
    if dtype is None or not tensor.is_floating_point() or tensor.element_size() <= dtype.itemsize:
        return tensor
    narrow = tensor.to(dtype)
    if bool((narrow.isinf() & ~tensor.isinf()).any()):
        largest = float(tensor.abs().max())
        raise OptionError(
            f"dtype={dtype}: {name} holds {largest:g}, which is out of its range; try torch.bfloat16, or None"
        )
    return narrow


def _header(
    result: Fusion,
    packings: Mapping[str, Packing],
    contents: Mapping[str, Tensor],
    dtype: torch.dtype | None,
) -> Stored:
    from ..core.version import __version__

    return Stored(
        model=type(result.model).__name__,
        recipe=asdict(result.recipe),
        sources=tuple(Source(type(m).__name__, state_digest(m)) for m in result.sources),
        plan=result.plan,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        version=__version__,
        torch=str(torch.__version__),
        packings=packings,
        integers=_integers(result.model),
        payload=digest(contents.items()),
    )


def _check_names(names: Sequence[str], stored: Stored, path: Path) -> None:
    if set(names) != set(stored.packings):
        raise CheckpointError(damaged(path, "its tensors are not those that its header lists"))


def _check_fits(stored: Stored, model: nn.Module, path: Path) -> None:
    """The model must have the tensors of the file, and differ in the lengths of elastic axes only."""
    tensors = named_tensors(model)
    for name, tensor in tensors.items():
        if tensor.is_meta or is_lazy(tensor):
            raise CheckpointError(
                f"{path} cannot be loaded into {type(model).__name__}: {name} has no memory yet (meta device or lazy "
                "module); build the model on a device, with its shapes set"
            )
    missing = [f"{n} {tuple(t.shape)}" for n, t in tensors.items() if n not in stored.packings]
    extra = [f"{n} {how.shape}" for n, how in stored.packings.items() if n not in tensors]
    other = [
        f"{n} {how.shape} in the file and {tuple(tensors[n].shape)} in the model"
        for n, how in stored.packings.items()
        if n in tensors and not _same_but_for_widths(how, tensors[n])
    ]
    told = [
        f"{what}: {shorten(found)}"
        for what, found in (("it lacks", missing), ("it has more", extra), ("shapes differ", other))
        if found
    ]
    if told:
        raise CheckpointError(
            f"{path} is of another model than this {type(model).__name__}: {'; '.join(told)}. "
            f"Pass a {stored.model} as it was fused; only the widths of elastic spaces may differ"
        )


def _resized(model: nn.Module, stored: Stored, path: Path) -> nn.Module:
    """A copy of a model with the shapes of the file, and no content yet."""
    try:
        return resized(model, {name: how.shape for name, how in stored.packings.items()})
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: {type(model).__name__} could not be copied with the widths of the file: {first_line(error)}; "
            f"pass a new {stored.model}"
        ) from error


def _same_but_for_widths(how: Packing, tensor: Tensor) -> bool:
    """Widths follow for floating-point tensors only: index tables and counters are what they are."""
    elastic = how.elastic if tensor.is_floating_point() else ()
    return len(how.shape) == tensor.dim() and all(
        n == m or axis in elastic for axis, (n, m) in enumerate(zip(how.shape, tensor.shape, strict=True))
    )


def _fill(model: nn.Module, file: Any, stored: Stored, path: Path) -> None:
    """Every tensor of the model from the file, one at a time."""
    targets = named_tensors(model)
    with torch.no_grad():
        for name, content in _contents(file, stored, path):
            target = targets[name]
            if content.dtype != target.dtype and not (content.is_floating_point() and target.is_floating_point()):
                raise CheckpointError(
                    f"{path} is of another model: {name} is {content.dtype} in the file and {target.dtype} in the "
                    f"model; pass a {stored.model} as it was fused"
                )
            stored.packings[name].unpack(content, target)


def _contents(file: Any, stored: Stored, path: Path) -> Iterator[tuple[str, Tensor]]:
    """What is stored of every tensor; the hash of all that was read must be the header's."""
    seen = Digest()
    for name, how in sorted(stored.packings.items()):
        content = file.get_tensor(name)
        seen.add(name, content)
        if tuple(content.shape) != how.stored_shape:
            raise CheckpointError(damaged(path, f"{name} has shape {tuple(content.shape)}, not {how.stored_shape}"))
        yield name, content
    if seen.hex() != stored.payload:
        raise CheckpointError(damaged(path, "its numbers are not those that were written"))


def _integers(model: nn.Module) -> dict[str, dict[str, int]]:
    """Whole numbers that modules of the user's own keep; PyTorch's own modules follow their weights."""
    found = {}
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch.nn"):
            values = {name: value for name, value in vars(module).items() if type(value) is int}
            if values:
                found[path] = values
    return found


def _set_integers(model: nn.Module, stored: Stored) -> None:
    """Surgery may have let such numbers follow the widths; only those that the module keeps already are set."""
    modules = dict(model.named_modules())
    for path, values in stored.integers.items():
        for name, value in values.items():
            held = vars(modules[path]).get(name) if path in modules else None
            if type(held) is int and held != value:
                log.debug("%s.%s set from %d to %d", path, name, held, value)
                setattr(modules[path], name, value)
