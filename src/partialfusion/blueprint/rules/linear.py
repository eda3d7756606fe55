"""Operations that read channels through a weight and write new ones."""

from __future__ import annotations

from typing import Any

import torch

from ..registry import NoRuleError, rule
from ..tracer import Tracer
from ..values import Activation, Parameter


def apply_weight(
    t: Tracer, x: Any, weight: Any, bias: Any, *, read: int, write: int, x_dim: int, out_dim: int
) -> Activation:
    """Dimension `read` of the weight reads dimension `x_dim` of x; dimension `write` writes `out_dim`."""
    if not isinstance(weight, Parameter) or len(weight.shape) < 2:
        raise NoRuleError
    labels = t.channels(t.activation(x), x_dim)
    t.bind(weight, read, labels, "reads", x_dim)
    out = t.written(weight, write, out_dim)
    if isinstance(bias, Parameter):
        t.bind(bias, 0, out, "writes")
    elif bias is not None:
        out = t.meet([Activation(out), t.activation(bias)], tuple(out.shape)).labels
    return t.computed(out, out_dim, weight)


@rule("linear")
def linear(t: Tracer, x: Any, weight: Any, bias: Any = None) -> Activation:
    return apply_weight(t, x, weight, bias, read=1, write=0, x_dim=-1, out_dim=-1)


@rule("addmm")
def addmm(t: Tracer, bias: Any, x: Any, weight: Any, **scale: Any) -> Activation:
    if scale or not isinstance(bias, Parameter) or len(bias.shape) != 1:
        raise NoRuleError
    return apply_weight(t, x, weight, bias, read=0, write=1, x_dim=-1, out_dim=-1)


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
        return apply_weight(t, x, weight, bias, read=1, write=0, x_dim=dim, out_dim=dim)
    if not (bias is None or isinstance(bias, Parameter)):
        raise NoRuleError
    labels = t.channels(t.activation(x), dim)
    if groups == len(labels) == weight.shape[0]:
        t.bind(weight, 0, labels, "scales")
        out = labels
    else:
        out = t.written(weight, 0, dim)
        t.together(torch.cat([labels.view(groups, -1), out.view(groups, -1)], 1))
    if isinstance(bias, Parameter):
        t.bind(bias, 0, out, "writes")
    return t.computed(out, dim, weight)


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
    return apply_weight(t, x, weight, bias, read=0, write=1, x_dim=dim, out_dim=dim)


@rule("embedding")
def embedding(t: Tracer, weight: Any, indices: Any, *options: Any) -> Activation:
    if not isinstance(weight, Parameter):
        raise NoRuleError
    return t.computed(t.written(weight, 1, -1), -1, weight)
