"""Recurrent layers: every hidden unit has a row for each gate, and all of them read all units of the step before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..labels import FIXED, FREE
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
    """Layers in one or both directions; the cells of an LSTM may be projected. Packed sequences have no rule."""
    known = isinstance(parameters, (list, tuple)) and all(isinstance(p, Parameter) for p in parameters)
    runs = layers * (1 + both_ways)
    if not known or len(parameters) % runs:
        raise NoRuleError
    each = len(parameters) // runs
    projected = each - (2 + 2 * biases)
    if projected not in (0, t.operation == "lstm"):
        raise NoRuleError
    states = [t.activation(h) for h in (hidden if isinstance(hidden, (list, tuple)) else [hidden])]
    read = t.channels(t.activation(x), -1)
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        for way in range(1 + both_ways):
            run = layer * (1 + both_ways) + way
            starts = [t.channels(h.with_labels(h.labels[run]), -1) for h in states]
            own = parameters[run * each : (run + 1) * each]
            ends.append(_run(t, read, own, GATES[t.operation], starts, projected=bool(projected)))
        read = torch.cat([hidden for hidden, _ in ends[-1 - both_ways :]])
    t.equal_widths.append(tuple(p.name for p in parameters[1::each]))
    if projected:
        t.equal_widths.append(tuple(p.name for p in parameters[each - 1 :: each]))
    result = Activation(read, frozenset(p.name for p in parameters), frozenset([t.operation]))
    outputs = [t.spread(read, -1, result)]
    for number, shape in enumerate(t.shapes[1:]):  # the last hidden states, and those of the cells
        last = torch.stack([t.labels.find(found[number]) for found in ends])
        outputs.append(result.with_labels(last.view(len(ends), *[1] * (len(shape) - 2), -1).expand(shape)))
    return tuple(outputs)


@rule(*(f"{name}_cell" for name in GATES))
def cell(t: Tracer, x: Any, hidden: Any, inward: Any, across: Any, *biases: Any) -> Any:
    """One step of a layer in one direction."""
    parameters = [inward, across, *(b for b in biases if b is not None)]
    if not all(isinstance(p, Parameter) for p in parameters):
        raise NoRuleError
    states = [t.activation(h) for h in (hidden if isinstance(hidden, (list, tuple)) else [hidden])]
    read, starts = t.channels(t.activation(x), -1), [t.channels(h, -1) for h in states]
    gates = GATES[t.operation.removesuffix("_cell")]
    labels, _ = _run(t, read, parameters, gates, starts, projected=False)
    result = Activation(labels, frozenset(p.name for p in parameters), frozenset([t.operation]))
    found = [t.spread(t.labels.find(labels), -1, result) for _ in t.shapes]
    return found[0] if t.single_result else tuple(found)


def _run(
    t: Tracer, read: Tensor, parameters: Sequence[Parameter], gates: int, starts: Sequence[Tensor], *, projected: bool
) -> tuple[Tensor, Tensor]:
    """One direction of a layer: the labels of its hidden units and of its cells; the same but for projections.

    Args:
        t: the tracer.
        read: (n,) what the layer reads.
        parameters: weights of the input and of the hidden units, biases, the weight of the projection.
        gates: rows for each cell.
        starts: the (n,) labels of the hidden units and cells at the start.
        projected: whether hidden units are projections of the cells.
    """
    inward, across, *rest = parameters
    biases = rest[: len(rest) - projected]
    wide, units = inward.shape[0] // gates, across.shape[1]
    if any(p.shape[0] != gates * wide for p in (inward, across, *biases)) or (wide != units and not projected):
        raise NoRuleError
    hidden = _read_by(t, across, units)
    cells = _read_by(t, rest[-1], wide) if projected else hidden
    t.bind(inward, 1, read, "reads", -1)
    t.bind(across, 1, hidden, "reads", -1)
    for weight in (inward, across, *biases):
        t.bind(weight, 0, cells.repeat(gates), "writes", -1)
    if projected:
        t.bind(rest[-1], 1, cells, "reads", -1)
        t.bind(rest[-1], 0, hidden, "writes", -1)
    for start, labels in zip(starts, (hidden, cells), strict=False):
        t.labels.unite(start, labels)
        t.rigid(labels[start == FIXED], f"{t.operation} starts from values that do not follow its channels")
        if bool((start == FREE).any()) and not bool((start == FREE).all()):
            raise NoRuleError
    return t.labels.find(hidden), t.labels.find(cells)


def _read_by(t: Tracer, weight: Parameter, count: int) -> Tensor:
    """(count,) the labels that a weight reads along axis 1; fresh ones where it was not used before."""
    bound = [b.labels for b in t.bound.get((weight.name, weight.axes[1]), ()) if b.role == "reads"]
    return bound[0] if bound else t.labels.fresh(count)
