"""Whether two modules differ in the numbers of their tensors alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MethodType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from .modules import canonical_names, named_tensors, sharing_tensors


def same_code(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules are sure to compute the same with the same parameters and buffers.

    Their classes are the same and so is all that they hold, but for the numbers in parameters and buffers. Anything
    that cannot be compared, such as a function that was made twice, counts as different.
    """
    return canonical_names(a) == canonical_names(b) and _same(a, b, {})


class Code:
    """What is remembered of a model to know it again: its modules without numbers. Empty, it knows no model.

    Of a model that cannot be compared with a copy of itself, such as one that holds a lock, only the object is known.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._twin = None if model is None else _without_numbers(model)
        if self._twin is not None and model is not None and not same_code(self._twin, model):
            self._twin = None
        self._model = None if model is None else ref(model)

    def is_of(self, model: nn.Module) -> bool:
        """Whether a model is sure to have this code."""
        if self._twin is not None:
            return same_code(self._twin, model)
        return self._model is not None and self._model() is model

    def __reduce__(self) -> tuple[type[Code], tuple[()]]:
        """Sent elsewhere, it knows no model: objects are others there, and modules may be of classes without names."""
        return Code, ()


def _without_numbers(model: nn.Module) -> nn.Module:
    meta: dict[Tensor, Tensor] = {}
    for tensor in named_tensors(model).values():
        empty = tensor.detach().to("meta")
        is_trained = isinstance(tensor, nn.Parameter)
        meta[tensor] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_trained else empty
    return sharing_tensors(model, meta)


def _same(a: Any, b: Any, seen: dict[tuple[int, int], bool]) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, nn.Module):
        if (id(a), id(b)) not in seen:
            seen[id(a), id(b)] = True  # should a module hold itself
            seen[id(a), id(b)] = _same_modules(a, b, seen)
        return seen[id(a), id(b)]
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and not a.is_meta and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, MethodType):
        return a.__func__ is b.__func__ and _same(a.__self__, b.__self__, seen)
    return _same_attributes(a, b, seen) and _same_values(a, b, seen)


def _same_attributes(a: Any, b: Any, seen: dict[tuple[int, int], bool]) -> bool:
    """Objects of a class of one's own, derived from a list or a number too, may hold more than they compare."""
    ours, theirs = (getattr(x, "__dict__", {}) for x in (a, b))
    if ours and (id(a), id(b)) not in seen:
        seen[id(a), id(b)] = True  # should it hold itself
        seen[id(a), id(b)] = _same(dict(ours), dict(theirs), seen)
    return seen[id(a), id(b)] if ours else not theirs


def _same_values(a: Any, b: Any, seen: dict[tuple[int, int], bool]) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(_same(x, y, seen) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(_same(a[key], b[key], seen) for key in a)
    if isinstance(a, functools.partial):
        return _same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), seen)
    own: object = type(a).__eq__
    return own is not object.__eq__ and (a == b) is True


def _same_modules(a: nn.Module, b: nn.Module, seen: dict[tuple[int, int], bool]) -> bool:
    """The mode of a module may differ; of parameters and buffers, the type and the shape must be the same."""
    ours, theirs = dict(vars(a)), dict(vars(b))
    for held in (ours, theirs):
        held.pop("training", None)  # a compiled module keeps it elsewhere
        for kind in ("_parameters", "_buffers"):
            held[kind] = {n: None if t is None else (t.dtype, tuple(t.shape)) for n, t in held[kind].items()}
    return _same(ours, theirs, seen)
