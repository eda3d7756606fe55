"""Operations that read channels through a weight and write new ones."""

from __future__ import annotations

from typing import Any

from ..tracer import Activation, NoRuleError, Parameter, Tracer, rule


def _apply_weight(
    t: Tracer, x: Any, weight: Any, bias: Any, *, read: int, write: int, x_dim: int, out_dim: int
) -> Activation:
    """Dimension `read` of the weight reads dimension `x_dim` of x; dimension `write` writes `out_dim`."""
    if not isinstance(weight, Parameter) or not (bias is None or isinstance(bias, Parameter)):
        raise NoRuleError
    labels = t.channels(t.activation(x), x_dim)
    t.bind(weight, read, labels, "reads")
    out = t.written(weight, write, out_dim)
    if bias is not None:
        t.bind(bias, 0, out, "writes")
    return t.spread(out, out_dim, frozenset([weight.name]))


@rule("linear")
def linear(t: Tracer, x: Any, weight: Any, bias: Any = None) -> Activation:
    return _apply_weight(t, x, weight, bias, read=1, write=0, x_dim=-1, out_dim=-1)


@rule("addmm")
def addmm(t: Tracer, bias: Any, x: Any, weight: Any, **scale: Any) -> Activation:
    if scale or not isinstance(bias, Parameter) or len(bias.shape) != 1:
        raise NoRuleError
    return _apply_weight(t, x, weight, bias, read=0, write=1, x_dim=-1, out_dim=-1)


@rule("matmul", "mm", "bmm")
def matmul(t: Tracer, a: Any, b: Any) -> Activation:
    if isinstance(b, Parameter) and len(b.shape) == 2:
        return _apply_weight(t, a, b, None, read=0, write=1, x_dim=-1, out_dim=-1)
    if isinstance(a, Parameter) and len(a.shape) == 2 and len(t.activation(b).labels.shape) > 1:
        return _apply_weight(t, b, a, None, read=1, write=0, x_dim=-2, out_dim=-2)
    raise NoRuleError


@rule("conv1d", "conv2d", "conv3d")
def convolution(
    t: Tracer,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Activation:
    if not isinstance(weight, Parameter):
        raise NoRuleError
    dim = 1 - len(weight.shape)
    if groups == 1:
        return _apply_weight(t, x, weight, bias, read=1, write=0, x_dim=dim, out_dim=dim)
    x = t.activation(x)
    if groups != x.labels.shape[dim] or weight.shape[0] != groups:
        raise NoRuleError
    labels = t.channels(x, dim)
    t.bind(weight, 0, labels, "scales")
    if isinstance(bias, Parameter):
        t.bind(bias, 0, labels, "writes")
    return t.spread(labels, dim, frozenset([weight.name]))


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(
    t: Tracer,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Activation:
    if groups != 1 or not isinstance(weight, Parameter):
        raise NoRuleError
    dim = 1 - len(weight.shape)
    return _apply_weight(t, x, weight, bias, read=0, write=1, x_dim=dim, out_dim=dim)


@rule("embedding")
def embedding(t: Tracer, weight: Any, indices: Any, *options: Any) -> Activation:
    if not isinstance(weight, Parameter):
        raise NoRuleError
    return t.spread(t.written(weight, 1, -1), -1, frozenset([weight.name]))
