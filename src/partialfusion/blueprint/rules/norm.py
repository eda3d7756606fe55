"""Normalisations: per channel they scale a space; across channels it stays elastic where the norm was recognised."""

from __future__ import annotations

from typing import Any

import torch

from ..labels import FIXED, compact, varying_dims
from ..registry import rule
from ..spaces import Norm
from ..tracer import Tracer
from ..values import Activation, Parameter


def _affine(t: Tracer, x: Activation, dim: int, weight: Any, bias: Any) -> torch.Tensor:
    """(n,) the labels along a dimension, with a scale and a shift bound to them."""
    labels = t.channels(x, dim)
    t.labels.touch(labels)
    if isinstance(weight, Parameter):
        t.bind(weight, 0, labels, "scales")
    if isinstance(bias, Parameter):
        t.bind(bias, 0, labels, "writes")
    for computed in (weight, bias):
        if isinstance(computed, Activation):
            labels = t.meet([Activation(labels), computed], tuple(labels.shape)).labels
    return labels


@rule("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(t: Tracer, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *options: Any) -> Activation:
    x = t.activation(x)
    labels = _affine(t, x, 1, weight, bias)
    if isinstance(mean, Parameter) and isinstance(var, Parameter):
        t.bind(mean, 0, labels, "scales")
        t.bind(var, 0, labels, "scales")
        t.norms.append(Norm(mean.name, var.name, tuple(sorted(x.sources))))
    return x


@rule("instance_norm")
def instance_norm(
    t: Tracer, x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input_stats: bool, *options: Any
) -> Activation:
    if not use_input_stats:
        return batch_norm(t, x, weight, bias, mean, var)
    x = t.activation(x)
    _affine(t, x, 1, weight, bias)
    return x


@rule("partialfusion.norm")
def norm(t: Tracer, x: Any, weight: Any, bias: Any, path: str, dim: int, *options: Any) -> Activation:
    """A norm across channels that surgery can replace by a view norm: the channels stay elastic.

    Where other dimensions carry channels too (heads), the norm runs within each of them: channels keep their order.
    """
    x = t.activation(x)
    every = t.labels.find(compact(x.labels)).expand(x.labels.shape)
    varying = varying_dims(every)
    place = x.labels.dim() + dim
    if place not in varying:
        return x.with_nonlinearity(t.operation)
    if varying != [place] and t.are_apart(every, place):
        t.keep_order(every, [place])
        return x.with_nonlinearity(t.operation)
    labels = t.channels(x, place)
    if not bool((labels > FIXED).all()):
        t.rigid(labels, "normed together with the network's input")
    t.labels.touch(labels)
    for parameter, role in ((weight, "scales"), (bias, "writes")):
        if isinstance(parameter, Parameter):
            t.bind(parameter, _only_long(parameter.shape), labels, role)  # type: ignore[arg-type]
    t.norm_across(path, labels)
    return x.with_nonlinearity(t.operation)


@rule("partialfusion.view_norm")
def view_norm(
    t: Tracer, x: Any, views: Any, shares: Any, weight: Any, bias: Any, dim: int, *options: Any
) -> Activation:
    """The norm of a model that was fused before: its channels may be reordered, its views go with them."""
    x = t.activation(x)
    labels = t.channels(x, x.labels.dim() + dim)
    t.labels.touch(labels)
    for table in (views, shares):
        t.bind(table, 1, labels, "scales")
    for parameter, role in ((weight, "scales"), (bias, "writes")):
        if isinstance(parameter, Parameter):
            t.bind(parameter, _only_long(parameter.shape), labels, role)  # type: ignore[arg-type]
    t.permutable(labels, "a view norm runs across it")
    return x.with_nonlinearity(t.operation)


def _only_long(shape: tuple[int, ...]) -> int:
    """The dimension of a scale or shift along which it has its channels."""
    return max(range(len(shape)), key=lambda d: shape[d])


@rule("layer_norm", "rms_norm")
def layer_norm(
    t: Tracer, x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, *options: Any
) -> Activation:
    x = t.activation(x)
    first = x.labels.dim() - len(normalized_shape)
    dims = [d for d in varying_dims(x.labels) if d >= first]
    affine = [(p, role) for p, role in ((weight, "scales"), (bias, "writes")) if isinstance(p, Parameter)]
    for dim in dims if affine else ():
        labels = t.channels(x, dim)
        for parameter, role in affine:
            t.bind(parameter, dim - first, labels, role)  # type: ignore[arg-type]
    if dims:
        t.sets(t.labels.find(compact(x.labels)), list(range(first, x.labels.dim())))
    return x.with_nonlinearity(t.operation)


@rule("group_norm")
def group_norm(t: Tracer, x: Any, groups: int, weight: Any = None, bias: Any = None, *options: Any) -> Activation:
    x = t.activation(x)
    labels = t.channels(x, 1)
    if groups < len(labels):
        t.blocks(labels.view(groups, -1), "group_norm runs across it")
    _affine(t, x, 1, weight, bias)
    return x
