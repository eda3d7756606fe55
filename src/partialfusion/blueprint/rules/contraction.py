"""Products of two activations: attention, written out or fused."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from ..labels import FIXED, FREE, compact
from ..registry import NoRuleError, rule
from ..tracer import Tracer
from ..values import Activation, Constant, Parameter
from .linear import apply_weight


def contract(t: Tracer, a: Activation, b: Activation, shape: tuple[int, ...]) -> Activation:
    """(… × L × n) @ (… × n × M) → (… × L × M).

    Where n carries channels, they are tied in pairs, and what the product depends on is the set of them: a head of
    attention, a block of its space. Where n is a position, channels pass from either side; those of the one that has
    them within a head belong to that head's block.
    """
    batch = shape[:-2]
    if a.sides is not None or b.sides is not None:
        return _with_outer(t, a, b, shape)
    x = t.labels.find(compact(a.labels)).expand(*batch, *a.labels.shape[-2:])
    y = t.labels.find(compact(b.labels)).expand(*batch, *b.labels.shape[-2:])
    if _varies(x, -1) or _varies(y, -2):
        labels = _over_channels(t, x, y, batch)
    elif _varies(x, -2) and _varies(y, -1):
        return _outer(t, x[..., :, 0], y[..., 0, :], a, b)
    else:
        labels = _over_positions(t, x[..., :, :1], y[..., :1, :])
    return _product(t, labels.expand(shape), a, b)


def _product(t: Tracer, labels: Tensor, a: Activation, b: Activation) -> Activation:
    return Activation(labels, a.sources | b.sources, a.nonlinear_after | b.nonlinear_after | {t.operation})


def _outer(t: Tracer, rows: Tensor, columns: Tensor, a: Activation, b: Activation) -> Activation:
    """Products of channels with channels, summed over positions: (… × L) and (… × M) labels.

    Every product belongs to a head, a block of the spaces on both sides. Entries that belong to no channel (a row of
    ones, for the sum) belong to the head, too.
    """
    sides, heads = [], []
    for side in (rows, columns):
        flat = t.labels.find(side).reshape(-1, side.shape[-1])
        known = (flat > FIXED).any(0)
        if bool((flat == FIXED).any()) or bool((flat[:, known] <= FIXED).any()):
            raise NoRuleError
        heads.append(t.blocks(flat[:, known], "attention mixes it head by head"))
        sides.append(torch.where(known, flat, heads[-1][:, None]).view(side.shape))
    t.labels.unite(*heads)
    labels = t.labels.find(heads[0]).view(*rows.shape[:-1], 1, 1).expand(*rows.shape, columns.shape[-1])
    return replace(_product(t, labels, a, b), sides=(sides[0], sides[1]))


def _with_outer(t: Tracer, a: Activation, b: Activation, shape: tuple[int, ...]) -> Activation:
    """A product of channels with channels meets the channels of one side again: those of the other side remain."""
    batch = shape[:-2]
    if a.sides is not None and b.sides is not None:
        raise NoRuleError
    if b.sides is not None:
        met, kept = b.sides
        other = t.labels.find(compact(a.labels)).expand(*batch, *a.labels.shape[-2:]).mT
    else:
        assert a.sides is not None
        kept, met = a.sides
        other = t.labels.find(compact(b.labels)).expand(*batch, *b.labels.shape[-2:])
    if _varies(other, -1):
        raise NoRuleError
    met, other = t.labels.find(met.expand(*batch, met.shape[-1])), other[..., 0]
    if bool((other <= FIXED).any()):
        raise NoRuleError
    t.blocks(other.reshape(-1, other.shape[-1]), "attention mixes it head by head")
    t.labels.unite(met, other)
    labels = t.labels.find(kept.expand(*batch, kept.shape[-1]))
    labels = labels[..., None, :] if b.sides is not None else labels[..., :, None]
    return _product(t, labels.expand(shape), a, b)


def _over_channels(t: Tracer, x: Tensor, y: Tensor, batch: tuple[int, ...]) -> Tensor:
    if _varies(x, -2) or _varies(y, -1):
        raise NoRuleError
    left, right = x[..., 0, :], y[..., :, 0]
    if bool(((left > FIXED) != (right > FIXED)).any()) or _varies(left, -1) != _varies(right, -1):
        raise NoRuleError
    t.labels.unite(left, right)
    rows = left.reshape(-1, left.shape[-1])
    return t.blocks(rows, "attention runs across it").view(*batch, 1, 1)


def _over_positions(t: Tracer, x: Tensor, y: Tensor) -> Tensor:
    """(… × L × 1) and (… × 1 × M) labels: nothing varies along what is summed over."""
    a, b = torch.broadcast_tensors(x, y)
    if bool(((a > FIXED) & (b > FIXED)).any()):
        inner, outer = (b, a) if _varies(b, -1) else (a.mT, b.mT)
        if _varies(outer, -1) or _varies(outer, -2):
            raise NoRuleError
        rows, heads = inner[..., 0, :].reshape(-1, inner.shape[-1]), outer[..., 0, 0].reshape(-1)
        parents = t.blocks(rows, "attention mixes it head by head")
        t.labels.unite(parents, heads)
    mixed = ((a == FIXED) & (b > FIXED)) | ((b == FIXED) & (a > FIXED))
    if bool(mixed.any()) and _batch_varies(torch.maximum(a, b)):
        t.rigid(torch.maximum(a, b), f"{t.operation} combines it with values that do not follow its channels")
    return torch.where(b > FREE, torch.where(a > FIXED, _child(t, a, b), b), a)


def _child(t: Tracer, a: Tensor, b: Tensor) -> Tensor:
    """The label of a product of a head's label and a channel's."""
    parent = t.labels.parents()
    a, b = t.labels.find(a), t.labels.find(b)
    return torch.where((parent[a] == b) | (b <= FIXED), a, b)


def _varies(labels: Tensor, dim: int) -> bool:
    return bool((labels != labels.narrow(dim, 0, 1)).any())


def _batch_varies(labels: Tensor) -> bool:
    return any(_varies(labels, d) for d in range(labels.dim() - 2))


@rule("matmul", "mm", "bmm")
def matmul(t: Tracer, a: Any, b: Any) -> Activation:
    if isinstance(b, Parameter) and len(b.shape) == 2:
        return apply_weight(t, a, b, None, read=0, write=1, x_dim=-1, out_dim=-1)
    if isinstance(a, Parameter) and len(a.shape) == 2 and t.activation(b).labels.dim() > 1:
        return apply_weight(t, b, a, None, read=1, write=0, x_dim=-2, out_dim=-2)
    if isinstance(b, Parameter) and len(b.shape) > 2 and isinstance(a, Constant):
        labels = t.channels(t.activation(b), -1)  # rows of a table, chosen or averaged
        return t.spread(labels, -1, Activation(labels))
    a, b = t.activation(a), t.activation(b)
    if min(a.labels.dim(), b.labels.dim()) < 2:
        raise NoRuleError
    return contract(t, a, b, t.shape)


@rule("scaled_dot_product_attention")
def attention(t: Tracer, q: Any, k: Any, v: Any, mask: Any = None, *options: Any, **more: Any) -> Activation:
    """softmax(q kᵀ + mask) v, (… × heads × L × d)."""
    q, k, v = t.activation(q), t.activation(k), t.activation(v)
    if more.get("enable_gqa"):
        k, v = (x.with_labels(x.labels.repeat_interleave(q.labels.shape[-3] // x.labels.shape[-3], -3)) for x in (k, v))
    if isinstance(mask, Parameter):
        mask = t.activation(mask)
    scores = contract(t, q, k.with_labels(k.labels.mT), (*q.labels.shape[:-1], k.labels.shape[-2]))
    if isinstance(mask, Activation):
        scores = t.meet([scores, mask], tuple(scores.labels.shape))
    return contract(t, scores, v, t.shape)


@rule("einsum")
def einsum(t: Tracer, equation: str, operands: list[Any]) -> Activation:
    """Two factors with one contracted index: activations, as a matrix product, or one of them a weight, as a layer."""
    left, arrow, out = equation.replace(" ", "").replace("...", ".").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2:
        raise NoRuleError
    first, second = terms
    if len(set(first)) < len(first) or len(set(second)) < len(second):  # a diagonal
        raise NoRuleError
    for (value, names), (weight, own) in permutations(zip(operands, terms, strict=True)):
        if isinstance(weight, Parameter) and len(own) == 2:
            return _layer(t, value, weight, names, own, out)
    if "." in equation or any(isinstance(v, Parameter) for v in operands):
        raise NoRuleError
    summed = [c for c in first if c in second and c not in out]
    batch = [c for c in first if c in second and c in out]
    rows, cols = [c for c in first if c not in second], [c for c in second if c not in first]
    if len(summed) != 1 or len(rows) > 1 or len(cols) > 1 or any(c not in out for c in rows + cols):
        raise NoRuleError
    a, b = (t.activation(v) for v in operands)
    x = _arranged(a.labels, first, [*batch, *(rows or [""]), summed[0]])
    y = _arranged(b.labels, second, [*batch, summed[0], *(cols or [""])])
    product = contract(t, a.with_labels(x), b.with_labels(y), (*x.shape[:-1], y.shape[-1]))
    order = [*batch, *(rows or [""]), *(cols or [""])]
    labels = product.labels
    for name in ("", ""):
        if name in order:
            labels = labels.squeeze(order.index(name))
            order.remove(name)
    return product.with_labels(labels.permute([order.index(c) for c in out]))


def _layer(t: Tracer, x: Any, weight: Parameter, names: str, own: str, out: str) -> Activation:
    """A weight whose indices are `own`, one of which is summed over, on an input whose indices are `names`."""
    read = [c for c in own if c in names and c not in out]
    write = [c for c in own if c in out and c not in names]
    if len(read) != 1 or len(write) != 1 or names.replace(read[0], "") != out.replace(write[0], ""):
        raise NoRuleError
    places = [name.index(c) - len(name) for name, c in ((names, read[0]), (out, write[0]))]
    if any("." in name[place:] for name, place in zip((names, out), places, strict=True)):
        raise NoRuleError
    x_dim, out_dim = places
    return apply_weight(
        t, x, weight, None, read=own.index(read[0]), write=own.index(write[0]), x_dim=x_dim, out_dim=out_dim
    )


def _arranged(labels: Tensor, names: str, order: list[str]) -> Tensor:
    """Dimensions in the given order; an empty name is a new one."""
    moved = labels.permute([names.index(c) for c in order if c])
    for place, name in enumerate(order):
        if not name:
            moved = moved.unsqueeze(place)
    return moved
