"""Weights that are both an embedding and the last layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

from .program import Program
from .tracer import AxisLabels

# Operations between a norm and the last layer that hand on what they read, times a number at most.
PASSES = "dropout mul div to _to_copy clone contiguous detach alias slice select index view reshape unsqueeze squeeze"


def tied_to_norms(program: Program, bound: Sequence[AxisLabels]) -> dict[str, str]:
    """Weight → path of the norm that alone feeds the layer which shares this weight with an embedding.

    An embedding writes its channels as they are; the last layer reads those of every model with the model's share.
    Stored once, the weight cannot have both, so the norm in front of the last layer takes the shares. That needs a
    norm with a scale that nothing else reads.
    """
    roles: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for b in bound:
        roles[b.parameter].add((b.axis, b.role))
    found = {}
    for name, seen in roles.items():
        embedded = {axis for axis, role in seen if (axis, "reads") in seen and role == "writes"}
        if len(embedded) != 1:
            continue
        norms = {_norm_in_front(program, user) for user in _readers(program, name)}
        path = norms.pop() if len(norms) == 1 else None
        if path is not None and program.norms[path].weight is not None:
            found[name] = path
    return found


def _readers(program: Program, name: str) -> Iterator[torch.fx.Node]:
    """The layers that multiply with a weight."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and program.names.get(node.name) == name:
            yield from (user for user in node.users if _operation(user) != "embedding")


def _norm_in_front(program: Program, layer: torch.fx.Node) -> str | None:
    """The norm that a layer reads, if nothing else reads it."""
    if _operation(layer) != "linear":
        return None
    user, node = layer, layer.args[0]
    while isinstance(node, torch.fx.Node):
        if set(node.users) != {user}:
            return None
        operation = _operation(node)
        if operation == "norm":
            return str(node.args[3])
        if operation not in PASSES.split() or sum(isinstance(a, torch.fx.Node) for a in node.args) > 1:
            return None
        user, node = node, node.args[0]
    return None


def _operation(node: torch.fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.partition("::")[2].rstrip("_") if schema else str(node.target)
