"""Operations that read channels through a weight and write new ones."""

from __future__ import annotations

from typing import Any

import torch

from ..labels import FIXED, compact, varying_dims
from ..registry import NoRuleError, rule
from ..tracer import Tracer
from ..values import Activation, Constant, Parameter


def apply_weight(
    t: Tracer, x: Any, weight: Any, bias: Any, *, read: int, write: int, x_dim: int, out_dim: int
) -> Activation:
    """Dimension `read` of the weight reads dimension `x_dim` of x; dimension `write` writes `out_dim`."""
    if not isinstance(weight, Parameter) or len(weight.shape) < 2:
        raise NoRuleError
    x = t.activation(x)
    if mixes_positions(t, x, x_dim):
        if len(weight.shape) > 2:
            raise NoRuleError
        return x.with_labels(x.labels.narrow(x_dim, 0, 1).expand(t.shape))
    labels = t.channels(x, x_dim)
    t.bind(weight, read, labels, "reads", x_dim)
    out = t.written(weight, write, out_dim)
    if isinstance(bias, Parameter):
        t.bind(bias, 0, out, "writes")
    elif bias is not None:
        out = t.meet([Activation(out), t.activation(bias)], tuple(out.shape)).labels
    return t.computed(out, out_dim, weight)


def mixes_positions(t: Tracer, x: Activation, dim: int) -> bool:
    """Whether channels stand along other dimensions only: what a weight combines along this one are positions, the
    same for all channels, and the weight belongs to none of them."""
    varying = varying_dims(t.labels.find(compact(x.labels)).expand(x.labels.shape))
    return bool(varying) and x.labels.dim() + dim not in varying and x.labels.shape[dim] > 1


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
    if isinstance(weight, Constant):
        return _with_constant(t, x, weight, bias, groups)
    if isinstance(weight, Activation):
        return _with_computed(t, x, weight, bias, groups)
    dim = 1 - len(weight.shape)
    if groups == 1:
        return apply_weight(t, x, weight, bias, read=1, write=0, x_dim=dim, out_dim=dim)
    if not (bias is None or isinstance(bias, Parameter)):
        raise NoRuleError
    labels = t.channels(t.activation(x), dim)
    if groups == len(labels) == weight.shape[0]:
        t.bind(weight, 0, labels, "scales", dim)
        out = labels
    else:
        out = t.written(weight, 0, dim)
        t.together(torch.cat([labels.view(groups, -1), out.view(groups, -1)], 1))
    if isinstance(bias, Parameter):
        t.bind(bias, 0, out, "writes")
    return t.computed(out, dim, weight)


def _with_constant(t: Tracer, x: Any, weight: Constant, bias: Any, groups: int) -> Activation:
    """Every channel blurred alike; a filter that is stored once for each of them follows them."""
    x, value, dim = t.activation(x), weight.value, 1 - weight.value.dim()
    labels = t.channels(x, dim)
    tensors = t.program.tensors
    stored = {b for b in weight.buffers if tensors[b].dim() and tensors[b].shape[0] == groups > 1}
    alike = bool(stored) or bool((value == value[:1]).all())
    if bias is not None or not groups == len(labels) == len(value) or not alike:
        raise NoRuleError
    t.follows_channels |= stored
    return t.spread(labels, dim, x)


def _with_computed(t: Tracer, x: Any, weight: Activation, bias: Any, groups: int) -> Activation:
    """A weight that is computed from parameters, such as a standardised one, whose labels are those that it writes.

    It mixes all that one channel is computed from. That is no harm where this never changes: the network's input, or a
    single channel. Otherwise a channel of another model would change it.
    """
    x, dim = t.activation(x), 1 - weight.labels.dim()
    out, labels = t.channels(weight, 0), t.channels(x, dim)
    if not bool((out > FIXED).all()) or not (bias is None or isinstance(bias, Parameter)):
        raise NoRuleError
    if groups == len(labels) == len(out):
        t.labels.unite(out, labels)
    elif bool((labels > FIXED).any()):
        why = "read by a weight that is computed across it, as standardised weights are"
        t.rigid(torch.cat([labels, out]), why)
    if isinstance(bias, Parameter):
        t.bind(bias, 0, out, "writes")
    return t.spread(t.labels.find(out), dim, Activation(out, weight.sources))


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
    """With groups, the group is the unit; the weight has all its inputs along axis 0, and the outputs of one group
    along axis 1, which belong to no channel of their own."""
    if not isinstance(weight, Parameter):
        raise NoRuleError
    dim = 1 - len(weight.shape)
    if groups == 1:
        return apply_weight(t, x, weight, bias, read=0, write=1, x_dim=dim, out_dim=dim)
    if not (bias is None or isinstance(bias, Parameter)):
        raise NoRuleError
    labels = t.channels(t.activation(x), dim)
    t.bind(weight, 0, labels, "scales", dim)
    if groups == len(labels) and weight.shape[1] == 1:
        out = labels
    else:
        out = t.labels.fresh(groups * weight.shape[1])
        t.together(torch.cat([labels.view(groups, -1), out.view(groups, -1)], 1))
    if isinstance(bias, Parameter):
        t.bind(bias, 0, out, "writes")
    return t.computed(out, dim, weight)


@rule("embedding")
def embedding(t: Tracer, weight: Any, indices: Any, *options: Any) -> Activation:
    if not isinstance(weight, Parameter):
        raise NoRuleError
    return t.computed(t.written(weight, 1, -1), -1, weight)


@rule("embedding_bag")
def embedding_bag(t: Tracer, weight: Any, indices: Any, offsets: Any, *options: Any, **more: Any) -> Any:
    """Sums, means or maxima of rows, channel by channel; all but the first result count rows."""
    if not isinstance(weight, Parameter):
        raise NoRuleError
    labels = t.written(weight, 1, -1).expand(t.shapes[0])
    return Activation(labels, frozenset([weight.name])), *(t.fixed(shape) for shape in t.shapes[1:])
