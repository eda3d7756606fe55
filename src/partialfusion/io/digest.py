"""Hashes of tensors by content: names, types, shapes and bytes, whatever their device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..core.progress import advance

CHUNK = 1 << 24  # bytes that are copied from the device at a time


class Digest:
    """A SHA-256 over named tensors, in the order in which they are added; tells how many bytes it has seen."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, tensor: Tensor) -> None:
        self.begin(name, tensor)
        self.more(tensor)

    def begin(self, name: str, form: Tensor) -> None:
        """A tensor of this type and shape follows, in as many parts as there may be."""
        kind = str(form.dtype).removeprefix("torch.")
        self._hash.update(json.dumps([name, kind, list(form.shape)]).encode())

    def more(self, part: Tensor) -> None:
        """The next numbers of the tensor that was begun, in row-major order."""
        for chunk in chunks(part):
            self._hash.update(chunk)
            advance(chunk.nbytes)

    def hex(self) -> str:
        return self._hash.hexdigest()


class ShardDigest:
    """A SHA-256 over named tensors that are added in any order: the hash of the sorted hashes of each."""

    def __init__(self) -> None:
        self._hashes: dict[str, str] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        for _ in self.passing(name, tensor, [tensor]):
            pass

    def passing(self, name: str, form: Tensor, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """The parts of a tensor of this type and shape, each added before it goes on."""
        own = Digest()
        own.begin(name, form)
        for part in parts:
            own.more(part)
            yield part
        self._hashes[name] = own.hex()

    def hex(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self._hashes.items())).encode()).hexdigest()


def digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The hash of named tensors, whatever their order."""
    found = Digest()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        found.add(name, tensor)
    return found.hex()


def state_digest(model: nn.Module) -> str:
    """The hash of a model's state dict: the same for the same weights under the same names, on any device."""
    return digest((name, value) for name, value in model.state_dict().items() if isinstance(value, Tensor))


def chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in row-major order, chunk by chunk."""
    flat = tensor.detach().reshape(-1)
    step = max(1, CHUNK // flat.element_size())
    for start in range(0, flat.numel(), step):
        part = flat[start : start + step].cpu().contiguous()
        # A single number is contiguous whatever its stride, but only a stride of one can be viewed as bytes.
        yield part.as_strided(part.shape, (1,)).view(torch.uint8).numpy().data
