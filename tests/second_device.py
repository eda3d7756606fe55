"""A second device for machines that have only one: tensors on it are ordinary, but marked.

Where a tensor that was created without a device (so on the first one) meets a marked tensor in an operation, PyTorch
would fail on a real accelerator, and this mode fails here. Tensors created with a device, or moved to the device of
another tensor, go with both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

FIRST, SECOND, BOTH = "first", "second", "both"
CREATING = {
    getattr(torch, name)
    for name in (
        *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn"),
        *("randperm", "tensor", "zeros"),
    )
}
COPYING = {"copy_", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"}
INDEXING = {"__getitem__", "__setitem__", "index_put_"}  # indices may be on the first device


def _names_device(args: Any, kwargs: Any) -> bool:
    """Whether the arguments of `Tensor.to` name a device, or a tensor to go to."""
    return any(isinstance(a, (torch.device, str, Tensor)) for a in (*args, *kwargs.values()))


class WrongDeviceError(AssertionError):
    """Tensors of two devices in one operation."""


class SecondDevice(TorchFunctionMode):
    """Mark tensors, follow them through operations, and fail where marked ones meet those of the first device."""

    def __init__(self, *parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.places: Any = WeakIdKeyDictionary()
        for part in parts:
            tensors = [part] if isinstance(part, Tensor) else [*part.parameters(), *part.buffers()]
            for tensor in tensors:
                self.places[tensor] = SECOND

    def __enter__(self) -> SecondDevice:
        self._from_numpy = torch.from_numpy  # modes do not see it
        torch.from_numpy = lambda array: self._mark([made := self._from_numpy(array)], FIRST) or made
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch.from_numpy = self._from_numpy
        super().__exit__(*error)

    def place(self, tensor: Tensor) -> str:
        return str(self.places.get(tensor, BOTH))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        result = func(*args, **kwargs)
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        if torch.compiler.is_exporting():
            return result
        if func in CREATING and not given:
            self._mark(made, BOTH if kwargs.get("device") is not None else FIRST)
        elif name in ("cpu", "numpy"):
            self._mark(made, FIRST)
        elif name == "to" and _names_device(args[1:], kwargs):
            self._mark([t for t in made if self.place(given[0]) == FIRST], BOTH)
        elif name in COPYING:
            self._mark([t for t in made if t not in self.places], BOTH)
        else:
            self._follow(func, name, given, made)
        return result

    def _follow(self, func: Any, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        counted = given[:1] if name in INDEXING else given
        places = {self.place(t) for t in counted if t.dim() > 0}
        if {FIRST, SECOND} <= places:
            shapes = [(tuple(t.shape), self.place(t)) for t in given]
            raise WrongDeviceError(f"{resolve_name(func) or func}: {shapes}")
        where = SECOND if SECOND in places else FIRST if places == {FIRST} else BOTH
        self._mark([t for t in made if t not in self.places or where == SECOND], where)

    def _mark(self, tensors: Iterable[Tensor], place: str) -> None:
        for tensor in tensors:
            self.places[tensor] = place
