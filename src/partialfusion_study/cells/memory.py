"""Working memory of a fused MLP: counted, not timed, so that it is the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import partialfusion as pf

from ..networks import mlp
from .clocks import fused_by_index


@dataclass(frozen=True)
class Memory:
    """The memory of one forward pass: of a single MLP, of two, and of their fusion in dense and in block form.

    Parameters are counted in bytes; activations are the largest number of bytes of tensors alive at one time during a
    call without gradients, and the bytes that a call with gradients keeps for the backward pass.

    Attributes:
        width: width of the three hidden layers.
        alpha: the isolated fraction of the channels.
        batch: batch size.
    """

    width: int
    alpha: float = 0.5
    batch: int = 64

    def run(self) -> dict[str, Any]:
        x = torch.zeros(self.batch, 784)
        a, b = (mlp(784, *[self.width] * 3, 10).eval() for _ in range(2))
        fused = fused_by_index([a, b], x, self.alpha)
        blocks = pf.to_blocks(fused)
        forms: dict[str, tuple[Callable[[], Tensor], tuple[nn.Module, ...]]] = {
            "single": (lambda: a(x), (a,)),
            "ensemble": (lambda: 0.5 * (a(x) + b(x)), (a, b)),
            "dense": (lambda: fused.model(x), (fused.model,)),
            "blocks": (lambda: blocks(x), (blocks,)),
        }
        return {
            name: {
                "parameters": sum(p.numel() * p.element_size() for m in models for p in m.parameters()),
                "peak": peak(call),
                "kept": kept(call, {t.data_ptr() for t in (x, *(p for m in models for p in m.parameters()))}),
            }
            for name, (call, models) in forms.items()
        }


class _Counting(TorchDispatchMode):
    """Counts the bytes of the tensors that operations create, while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive, self.most = 0, 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, Tensor)}
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self._born(tensor.untyped_storage())
        return result

    def _born(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in self.known:
            self.known.add(place)
            self.alive += size
            self.most = max(self.most, self.alive)
            weakref.finalize(storage, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.alive -= size


def peak(call: Callable[[], Tensor]) -> int:
    """The largest number of bytes of tensors alive at one time, of those that a call creates, without gradients."""
    with torch.no_grad(), _Counting() as counting:
        call()
    return counting.most


def kept(call: Callable[[], Tensor], given: set[int]) -> int:
    """The bytes of the tensors that a call keeps for its backward pass, without those that there were before."""
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = call()
    del output
    return sum(found.values())
