"""Models that a config describes, which may be anybody's: no larger than the files beside it allow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import CheckpointError
from .bounds import MARGIN, RATIO

LEAST = 1000  # layers and tensors that any config may have
SHARED = 4  # parameters for each tensor in the files: those that are tied or computed have none of their own
COUNTS = re.compile(r"(^|_)(layers?|depths?|blocks|stages)$")  # what a config calls numbers of layers


@dataclass(frozen=True)
class Bounds:
    """How large a model may be.

    Attributes:
        tensors: of how many parameters and buffers.
        size: of how many bytes.
    """

    tensors: int
    size: int

    @classmethod
    def of(cls, tensors: int, size: int) -> Bounds:
        """For files with so many tensors and bytes, which may hold them in a few bits for each number."""
        return cls(LEAST + SHARED * tensors, MARGIN + RATIO * size)

    @classmethod
    def of_machine(cls) -> Bounds:
        """Where nothing is known but the memory of this machine."""
        try:
            size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            size = 1 << 50
        return cls(1000 * LEAST, size)

    def check_config(self, config: Mapping[str, Any], where: object) -> None:
        """Refuse numbers of layers beyond all bounds: some code makes lists of that length before any layer."""
        for name, value in config.items():
            inner = value if isinstance(value, Mapping) else {}
            self.check_config(inner, where)
            counts = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, (int, float))]
            if COUNTS.search(name) and any(count > self.tensors for count in counts):
                raise CheckpointError(f"{where} says {name}={value}, which its weights cannot have; copy it again")


@contextmanager
def bounded(bounds: Bounds, where: object) -> Iterator[None]:
    """Modules that are built in the context may not have more parameters and buffers, or larger ones, than the bounds
    say; the memory of one that is too large is not touched."""
    usual, usual_buffer = nn.Module.register_parameter, nn.Module.register_buffer
    tensors = size = 0

    def count(tensor: Tensor | None) -> None:
        nonlocal tensors, size
        if tensor is None:
            return
        tensors, size = tensors + 1, size + tensor.numel() * tensor.element_size()
        if tensors > bounds.tensors or size > bounds.size:
            raise CheckpointError(
                f"{where} describes a model of more than {tensors - 1} tensors and {size >> 20} MB, and its weights "
                "are far smaller; copy it again"
            )

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        count(param)
        usual(self, name, param)

    def register_buffer(self: nn.Module, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        count(tensor)
        usual_buffer(self, name, tensor, persistent)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    nn.Module.register_buffer = register_buffer  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = usual  # type: ignore[method-assign]
        nn.Module.register_buffer = usual_buffer  # type: ignore[method-assign]
