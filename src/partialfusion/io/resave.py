"""A stored fusion written anew: with numbers that were trained since, or in another precision."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.modules import named_tensors
from ..errors import CheckpointError
from .digest import digest
from .files import StrPath, replacing, writable, write_tensors
from .header import Stored, to_metadata
from .packing import Packing
from .storage import narrowed


def resave(stored: Stored, model: nn.Module, path: StrPath, *, dtype: torch.dtype | None = None) -> None:
    """Write a fused model with the plan, recipe and sources of an earlier file, whole or not at all.

    Args:
        stored: `inspect` of the earlier file.
        model: of the shapes in that file; a tensor that has come to hold numbers in its zero blocks is stored whole.
        path: ends in .safetensors.
        dtype: store parameters that are wider than this in it; buffers keep their precision.
    """
    from ..core.version import __version__

    path = writable(path)
    tensors = named_tensors(model)
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    for name in {**stored.packings, **shapes}:
        held = stored.packings[name].shape if name in stored.packings else None
        if shapes.get(name) != held:
            raise CheckpointError(
                f"{name} has shape {shapes.get(name)} in the model and {held} in the fusion whose plan is used: pass "
                "the file that the model was loaded from"
            )
    packings: dict[str, Packing] = {}
    contents: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, tensor in tensors.items():
            packings[name], content = _packed(stored.packings[name], tensor.detach())
            contents[name] = narrowed(name, content, dtype if isinstance(tensor, nn.Parameter) else None)
    header = replace(
        stored,
        packings=packings,
        payload=digest(contents.items()),
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        version=__version__,
        torch=str(torch.__version__),
    )
    with replacing(path) as file:
        write_tensors(file, contents, to_metadata(header))


def _packed(how: Packing, tensor: Tensor) -> tuple[Packing, Tensor]:
    content = how.pack(tensor)
    if int(content.count_nonzero()) == int(tensor.count_nonzero()):
        return how, content
    return replace(how, support=()), tensor
