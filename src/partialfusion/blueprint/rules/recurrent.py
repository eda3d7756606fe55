"""Recurrent layers: every hidden unit has a row for each gate, and all of them read all units of the step before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..labels import FREE, compact
from ..registry import NoRuleError, rule
from ..tracer import Tracer
from ..values import Activation, Parameter

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule(*GATES)
def recurrent(
    t: Tracer,
    x: Any,
    hidden: Any,
    parameters: Any,
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both_ways: bool,
    batch_first: bool = False,
) -> Any:
    """States that start at zero; packed sequences and projections have no rule."""
    states = hidden if isinstance(hidden, (list, tuple)) else [hidden]
    known = isinstance(parameters, (list, tuple)) and all(isinstance(p, Parameter) for p in parameters)
    ways, each = 1 + both_ways, 2 + 2 * biases
    if not known or len(parameters) != layers * ways * each:
        raise NoRuleError
    if any(bool((compact(t.activation(h).labels) != FREE).any()) for h in states):
        raise NoRuleError
    read = t.channels(t.activation(x), -1)
    last: list[Tensor] = []
    for layer in range(layers):
        written = []
        for way in range(ways):
            first = (layer * ways + way) * each
            written.append(_direction(t, read, parameters[first : first + each], GATES[t.operation]))
        read = torch.cat(written)
        last += written
    sources = frozenset(p.name for p in parameters)
    result = Activation(read, sources, frozenset([t.operation]))
    outputs = [t.spread(read, -1, result)]
    ends = torch.stack([t.labels.find(w) for w in last])[:, None]
    outputs += [result.with_labels(ends.expand(shape)) for shape in t.shapes[1:]]
    return tuple(outputs)


def _direction(t: Tracer, read: Tensor, parameters: list[Parameter], gates: int) -> Tensor:
    """(n,) the hidden units of one direction of a layer."""
    inward, across, *biases = parameters
    units = across.shape[1]
    if inward.shape[0] != gates * units or across.shape[0] != gates * units:
        raise NoRuleError
    known = [b.labels for b in t.bound.get((across.name, across.axes[1]), ()) if b.role == "reads"]
    labels = known[0] if known else t.labels.fresh(units)
    t.bind(inward, 1, read, "reads", -1)
    t.bind(across, 1, labels, "reads", -1)
    for weight in (inward, across, *biases):
        t.bind(weight, 0, labels.repeat(gates), "writes", -1)
    return t.labels.find(labels)
