"""Operations that only move data: carried out on the labels themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..labels import FIXED, compact, varying_dims
from ..registry import NoRuleError, rule
from ..repeats import numbered, without_channels
from ..tracer import Tracer
from ..values import Activation, Constant, Parameter, Value

MOVES = """
    select slice narrow expand expand_as squeeze unsqueeze chunk split split_with_sizes tensor_split unbind roll flip
    repeat tile repeat_interleave movedim moveaxis swapaxes swapdims flatten unflatten channel_shuffle pixel_shuffle
    pixel_unshuffle native_channel_shuffle unfold rot90 ravel diagonal index_select
"""


def _reversed(n: int) -> list[int]:
    return list(reversed(range(n)))


def _swapped(n: int, a: int, b: int) -> list[int]:
    order = list(range(n))
    order[a % n], order[b % n] = order[b % n], order[a % n]
    return order


def _permuted(n: int, dims: list[int]) -> list[int]:
    return [d % n for d in dims]


AXES_ONLY: dict[str, Callable[..., list[int]]] = {
    "t": _reversed,
    "numpy_T": _reversed,
    "transpose": _swapped,
    "mT": lambda n: _swapped(n, -2, -1),
    "permute": _permuted,
}


@rule(*AXES_ONLY)
def reorder_axes(t: Tracer, x: Any, *args: Any) -> Value:
    """Parameters keep their identity when their axes change places: x @ W.T reads W."""
    if isinstance(x, Parameter):
        order = AXES_ONLY[t.operation](len(x.shape), *args)
        return Parameter(x.name, tuple(x.shape[d] for d in order), tuple(x.axes[d] for d in order))
    x = t.activation(x)
    order = AXES_ONLY[t.operation](x.labels.dim(), *args)
    if x.numbers is not None:
        return without_channels(x.numbers.permute(order))
    moved = x.with_labels(x.labels.permute(order))
    if x.sides is not None and order == _swapped(len(order), -2, -1):
        return replace(moved, sides=(x.sides[1], x.sides[0]))
    return moved


@rule("view", "reshape", "_unsafe_view", "view_as", "reshape_as")
def reshape(t: Tracer, x: Any, *shape: Any) -> Activation:
    x = t.activation(x)
    labels = x.labels.reshape(t.shape)
    hidden = labels.data_ptr() != x.labels.data_ptr() and bool((compact(x.labels) == FIXED).all())
    return without_channels(numbered(x).reshape(t.shape)) if hidden or x.numbers is not None else x.with_labels(labels)


@rule("cat", "concat", "concatenate")
def cat(t: Tracer, tensors: list[Any], dim: int = 0) -> Activation:
    for value in tensors:
        if isinstance(value, Constant) and any(isinstance(other, Parameter) for other in tensors):
            t.follows_channels |= value.buffers
    parts = [t.activation(v) for v in tensors]
    labels = [p.labels for p in parts if p.labels.dim() == len(t.shape)]
    dim = dim % len(t.shape)
    for d in range(len(t.shape)):
        if d != dim and all(x.stride(d) == 0 for x in labels):
            labels = [x.narrow(d, 0, min(1, x.shape[d])) for x in labels]
    joined = torch.cat([x.contiguous() for x in labels], dim)
    return _joined(parts, joined.expand(t.shape))


@rule("stack")
def stack(t: Tracer, tensors: list[Any], dim: int = 0) -> Activation:
    parts = [t.activation(v) for v in tensors]
    return _joined(parts, torch.stack([p.labels for p in parts], dim))


@rule("pad", "constant_pad_nd")
def pad(t: Tracer, x: Any, widths: list[int], mode: Any = "constant", value: Any = None) -> Activation:
    x = t.activation(x)
    if not isinstance(mode, str) or mode == "constant":
        return x.with_labels(torch.nn.functional.pad(x.labels, widths))
    moved = torch.nn.functional.pad(x.labels.double(), widths, mode=mode)
    return x.with_labels(moved.long())


@rule("index")
def index(t: Tracer, x: Any, indices: list[Any]) -> Activation:
    """Indices that are computed choose positions, where all that they may choose from is alike."""
    x = t.activation(x)
    chosen = tuple(slice(None) if i is None else _index(t, x, d, i) for d, i in enumerate(indices))
    return _checked(t, x, x.labels[chosen])


def _index(t: Tracer, x: Activation, dim: int, index: Any) -> Tensor:
    """An index along one dimension, as it is or as any other that finds the same labels."""
    if isinstance(index, Constant):
        return index.value
    labels = t.labels.find(compact(x.labels))
    if isinstance(index, Parameter) or dim in varying_dims(labels.expand(x.labels.shape)):
        raise NoRuleError
    return torch.zeros(index.labels.shape, dtype=torch.long)


@rule("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_empty", "empty_like")
def filled(t: Tracer, *arguments: Any, **options: Any) -> Constant:
    """A tensor of one value, for the code to write into; which value makes no difference to channels."""
    return Constant(torch.zeros(t.shape))


@rule("fill_", "zero_")
def fill(t: Tracer, x: Any, *value: Any) -> Activation:
    """One value written over channels, in place: whoever looks at them finds them all the same."""
    t.labels.touch(t.activation(x).labels)
    return Activation(torch.zeros((1,) * len(t.shape), dtype=torch.long).expand(t.shape))


@rule(*MOVES.split())
def move(t: Tracer, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the operation on the labels; constants among the arguments are what they are."""

    def plain(value: Any) -> Any:
        if isinstance(value, Constant):
            return value.value
        if not isinstance(value, (Activation, Parameter)):
            return value
        if t.operation != "expand_as":
            raise NoRuleError
        return t.activation(value).labels

    is_value = lambda v: isinstance(v, Value)  # noqa: E731
    x = t.activation(x)
    args, kwargs = tree_map(plain, (args, kwargs), is_leaf=is_value)
    operation = getattr(torch.ops.aten, t.operation)
    moved = operation(x.labels if x.numbers is None else x.numbers, *args, **kwargs)
    if x.numbers is not None:
        return without_channels(moved) if isinstance(moved, Tensor) else [without_channels(m) for m in moved]
    if isinstance(moved, Tensor):
        return _checked(t, x, moved)
    return [x.with_labels(m) for m in moved]


def _checked(t: Tracer, x: Activation, labels: Tensor) -> Activation:
    if tuple(labels.shape) != t.shape:
        raise NoRuleError
    return x.with_labels(labels)


def _joined(parts: list[Activation], labels: Tensor) -> Activation:
    return Activation(
        labels,
        frozenset[str]().union(*(p.sources for p in parts)),
        frozenset[str]().union(*(p.nonlinear_after for p in parts)),
    )
