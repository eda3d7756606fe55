"""Pooling and reductions: over positions they pass labels on, over channels they end them."""

from __future__ import annotations

from typing import Any

from ..labels import FIXED, FREE, compact, varying_dims
from ..registry import rule
from ..tracer import Tracer
from ..values import Activation

WINDOWS = """
    max_pool{n}d avg_pool{n}d adaptive_avg_pool{n}d adaptive_max_pool{n}d max_pool{n}d_with_indices
    upsample_nearest{n}d _upsample_nearest_exact{n}d lp_pool{n}d
"""
RESIZES = {
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "_upsample_bilinear2d_aa": 2,
    "upsample_bicubic2d": 2,
    "_upsample_bicubic2d_aa": 2,
    "_upsample_lanczos2d_aa": 2,
    "upsample_trilinear3d": 3,
}


def _pool(n: int) -> Any:
    def pool(t: Tracer, x: Any, *options: Any, **more: Any) -> Any:
        x = t.activation(x)
        dim = -1 - n
        labels = t.channels(x, dim)
        t.labels.touch(labels)
        pooled = t.spread(labels, dim, x) if bool((labels > FIXED).any()) else t.fixed(t.shape)
        return pooled if t.single_result else (pooled, t.fixed(t.shape))

    return pool


for _n in (1, 2, 3):
    rule(*WINDOWS.format(n=_n).split())(_pool(_n))
for _name, _n in RESIZES.items():
    rule(_name)(_pool(_n))


@rule("mean", "sum", "amax", "amin", "logsumexp", "prod", "var", "std")
def reduce(t: Tracer, x: Any, dims: Any = None, *options: Any, **more: Any) -> Activation:
    return _reduce(t, t.activation(x), dims)


@rule("linalg_vector_norm", "norm")
def vector_norm(t: Tracer, x: Any, order: Any = 2, dims: Any = None, *options: Any, **more: Any) -> Activation:
    return _reduce(t, t.activation(x), dims)


def _reduce(t: Tracer, x: Activation, dims: Any) -> Activation:
    rank = x.labels.dim()
    if dims is None or dims == [] or isinstance(dims, bool):
        dims = range(rank)
    given = [dims] if isinstance(dims, int) else dims
    over = sorted({d % rank for d in given})
    every = t.labels.find(compact(x.labels))
    t.labels.touch(every)
    labels = every.amax(over, keepdim=True) if over else every
    if bool(((every != labels) & (every != FREE)).any()):
        labels = t.sets(every, over)
    if len(t.shape) != rank:
        labels = labels.reshape([n for d, n in enumerate(labels.shape) if d not in over])
    return x.with_labels(labels.expand(t.shape))


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(t: Tracer, x: Any, dim: int, *options: Any) -> Activation:
    x = t.activation(x)
    labels = t.labels.find(compact(x.labels))
    t.labels.touch(labels)
    dim = dim % max(1, labels.dim())  # a scalar has no dimension, but takes 0 for one
    if dim in varying_dims(labels):
        t.sets(labels, [dim])
    return x.with_nonlinearity(t.operation)
