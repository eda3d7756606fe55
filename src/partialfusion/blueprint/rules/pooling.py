"""Pooling and reductions: over positions they pass labels on, over channels they end them."""

from __future__ import annotations

from typing import Any

import torch

from ..labels import FREE, compact, varying_dims
from ..tracer import Activation, Tracer, rule

WINDOWS = """
    max_pool{n}d avg_pool{n}d adaptive_avg_pool{n}d adaptive_max_pool{n}d max_pool{n}d_with_indices
    upsample_nearest{n}d _upsample_nearest_exact{n}d lp_pool{n}d
"""
RESIZES = "upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_bicubic2d upsample_trilinear3d"


def _pool(n: int) -> Any:
    def pool(t: Tracer, x: Any, *options: Any, **more: Any) -> Any:
        x = t.activation(x)
        dim = -1 - n
        pooled = t.spread(t.channels(x, dim), dim, x.sources)
        return pooled if t.single_result else (pooled, t.fixed(t.shape))

    return pool


for _n in (1, 2, 3):
    rule(*WINDOWS.format(n=_n).split())(_pool(_n))
for _name, _n in zip(RESIZES.split(), (1, 2, 2, 2, 3), strict=True):
    rule(_name)(_pool(_n))


@rule("mean", "sum", "amax", "amin", "logsumexp", "prod", "var", "std")
def reduce(t: Tracer, x: Any, dims: Any = None, *options: Any, **more: Any) -> Activation:
    return _reduce(t, t.activation(x), dims)


@rule("linalg_vector_norm", "norm")
def vector_norm(t: Tracer, x: Any, order: Any = 2, dims: Any = None, *options: Any, **more: Any) -> Activation:
    return _reduce(t, t.activation(x), dims)


def _reduce(t: Tracer, x: Activation, dims: Any) -> Activation:
    rank = x.labels.dim()
    given = range(rank) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    over = sorted({d % rank for d in given})
    every = t.labels.find(compact(x.labels))
    labels = every.amax(over, keepdim=True) if over else every
    if bool(((every != labels) & (every != FREE)).any()):
        _together(t, every, over, f"{t.operation} runs across it")
        return t.fixed(t.shape)
    if len(t.shape) != rank:
        labels = labels.reshape([n for d, n in enumerate(labels.shape) if d not in over])
    return Activation(labels.expand(t.shape), x.sources)


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(t: Tracer, x: Any, dim: int, *options: Any) -> Activation:
    x = t.activation(x)
    labels = t.labels.find(compact(x.labels))
    if dim % labels.dim() in varying_dims(labels):
        _together(t, labels, [dim % labels.dim()], f"{t.operation} runs across it")
    return x


def _together(t: Tracer, labels: torch.Tensor, dims: list[int], reason: str) -> None:
    """Each set of labels that stands along `dims` at one position is treated as a set: order does not matter."""
    ends = list(range(-len(dims), 0))
    rows = labels.movedim(dims, ends).flatten(-len(dims)).reshape(-1, _numel(labels, dims))
    for row in rows.unique(dim=0):
        t.permutable(row, reason)


def _numel(labels: torch.Tensor, dims: list[int]) -> int:
    size = 1
    for d in dims:
        size *= labels.shape[d]
    return size
