"""Element-wise operations: labels pass, or meet."""

from __future__ import annotations

from typing import Any

import torch

from ..registry import rule
from ..tracer import Tracer
from ..values import Activation, Parameter

NONLINEAR = """
    relu relu6 gelu silu mish elu selu celu leaky_relu hardswish hardsigmoid hardtanh sigmoid log_sigmoid tanh
    softplus softsign hardshrink softshrink threshold rrelu erf exp expm1 log log1p sqrt rsqrt square abs sign sin
    cos reciprocal clamp clamp_min clamp_max round floor ceil
    logical_not nan_to_num tanhshrink
"""
LINEAR = """
    dropout alpha_dropout feature_dropout feature_alpha_dropout to _to_copy type_as clone contiguous detach alias
    lift_fresh lift_fresh_copy neg
"""
BINARY_SCALES = """
    mul div where maximum minimum masked_fill pow atan2 fmod remainder eq ne lt le gt ge
    __and__ __or__ __xor__ bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor
"""
BINARY_ADDS = "add sub rsub lerp addcmul addcdiv"


@rule(*NONLINEAR.split())
def nonlinear(t: Tracer, *operands: Any, **more: Any) -> Activation:
    return t.merge(*operands, *more.values()).with_nonlinearity(t.operation)


@rule(*LINEAR.split())
def linear(t: Tracer, x: Any, *options: Any, **more: Any) -> Activation:
    return t.merge(x)


@rule(*BINARY_SCALES.split())
def scaling(t: Tracer, *operands: Any, **more: Any) -> Activation:
    return t.merge(*operands, *more.values(), role="scales")


@rule(*BINARY_ADDS.split())
def adding(t: Tracer, *operands: Any, **more: Any) -> Activation:
    return t.merge(*operands, *more.values(), role="writes")


@rule("prelu")
def prelu(t: Tracer, x: Any, weight: Any) -> Activation:
    x = t.activation(x)
    if isinstance(weight, Parameter) and weight.shape[0] > 1:
        t.bind(weight, 0, t.channels(x, 1), "scales")
    return t.merge(x).with_nonlinearity(t.operation)


@rule("glu")
def glu(t: Tracer, x: Any, dim: int = -1) -> Activation:
    x = t.activation(x)
    value, gate = torch.chunk(x.labels, 2, dim)
    return t.merge(x.with_labels(value), x.with_labels(gate)).with_nonlinearity(t.operation)
