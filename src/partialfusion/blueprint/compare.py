"""What a model computes, operation by operation and without its weights, and where two models differ in it."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .program import Program

# Whole numbers under these names are sizes: they differ between models of other widths.
SIZES = frozenset(
    {
        *("size", "shape", "sizes", "split_size", "split_sizes", "start", "end", "length", "repeats"),
        *("groups", "num_groups", "normalized_shape", "num_heads", "num_head", "embed_dim"),
    }
)
# Numbers that do nothing unless the other argument says so.
ONLY_IN_TRAINING = {"p": "train", "momentum": "training"}
# Where a tensor lives is not what is computed.
NOT_COMPUTED = frozenset({"device", "pin_memory", "non_blocking", "cudnn_enabled"})


@dataclass(frozen=True)
class Given:
    """A tensor that an operation takes.

    Attributes:
        kind: "result" of an operation, "parameter" (or buffer), "input", or "constant" that the code itself holds.
        which: the number of the operation, the name, or what tells constants apart.
        text: what it is called in a message.
    """

    kind: str
    which: int | str
    text: str


@dataclass(frozen=True)
class Operation:
    """One operation of a model.

    Attributes:
        path: the module that carries it out.
        name: the operation, with its overload.
        arguments: name → number, text or `Given` tensor, or lists of these; those that are left out have their
            defaults.
    """

    path: str
    name: str
    arguments: Mapping[str, Any]

    @property
    def short(self) -> str:
        """The name as it is written in code."""
        return self.name.removeprefix("aten.").partition(".")[0]

    @property
    def where(self) -> str:
        return self.path or "the model"


def operations(program: Program) -> tuple[Operation, ...]:
    """What a program computes, in order. Holds no tensors: constants are known by their digests."""
    return tuple(_Reader(program).read(program.graph))


def difference(
    first: Sequence[Operation], second: Sequence[Operation], *, same_shapes: bool, names: tuple[str, str]
) -> str | None:
    """Where two models begin to compute different things, as a sentence; None if they do not.

    Args:
        first: what one model computes.
        second: what the other computes.
        same_shapes: their parameters have the same shapes. Otherwise whole numbers that are sizes may differ.
        names: what to call the models.
    """
    for mine, theirs in zip(first, second, strict=False):
        if mine.name != theirs.name:
            where = "" if mine.path == theirs.path else f" in {theirs.where}"
            return f"{mine.where}: {names[0]} computes {mine.short} and {names[1]} {theirs.short}{where}"
        for name, value in mine.arguments.items():
            other = theirs.arguments.get(name)
            if not _same(value, other, sizes=not same_shapes and name in SIZES):
                return f"{mine.where}: {_described(mine, name, value, other, names)}"
    if len(first) != len(second):
        mine_is_longer = len(first) > len(second)
        extra = first[len(second)] if mine_is_longer else second[len(first)]
        by, other = names if mine_is_longer else (names[1], names[0])
        return f"{extra.where}: {by} also computes {extra.short}, which {other} does not"
    return None


def digest(tensor: Tensor) -> str:
    """Equal for tensors that are equal bit for bit, NaN being NaN; without numbers, for those of one shape."""
    head = f"{tensor.dtype} {tuple(tensor.shape)}"
    if tensor.is_meta or type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return head
    plain = (tensor.to_dense() if tensor.layout != torch.strided else tensor).detach().cpu().resolve_conj().flatten()
    if plain.is_floating_point():
        plain = plain.masked_fill(plain.isnan(), float("nan"))
    return f"{head} {hashlib.sha256(plain.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()}"


class _Reader:
    """Reads a graph and those nested in it, numbering their operations."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.given: dict[torch.fx.Node, Any] = {}
        self.count = 0

    def read(self, graph: torch.fx.Graph, *, nested: bool = False) -> Iterator[Operation]:
        for node in graph.nodes:
            if node.op == "placeholder":
                self.given[node] = Given("input", node.name, "an input") if nested else self._placeholder(node)
            elif node.op == "get_attr":
                held = operator.attrgetter(node.target)(graph.owning_module)
                if isinstance(held, torch.fx.GraphModule):
                    yield from self.read(held.graph, nested=True)
                self.given[node] = _constant(held) if isinstance(held, Tensor) else None
            elif node.op == "output":
                yield self._operation(node, "output", {"results": node.args})
            elif not str(node.target).startswith("aten._assert"):
                yield self._operation(node, str(node.target), _arguments(node))

    def _operation(self, node: torch.fx.Node, name: str, arguments: Mapping[str, Any]) -> Operation:
        found = Operation(_path(node), name, {key: self._plain(value) for key, value in arguments.items()})
        self.given[node] = Given("result", self.count, f"the result of {found.short}")
        self.count += 1
        return found

    def _placeholder(self, node: torch.fx.Node) -> Given:
        if node.name in self.program.names:
            name = self.program.names[node.name]
            return Given("parameter", name, name)
        if node.name in self.program.constants:
            return _constant(self.program.constants[node.name])
        return Given("input", node.name, f"the input {node.name}")

    def _plain(self, value: Any) -> Any:
        """A value without nodes and tensors; None for objects that cannot be compared."""
        if isinstance(value, torch.fx.Node):
            return self.given.get(value)
        if isinstance(value, (list, tuple)):
            return [self._plain(v) for v in value]
        if isinstance(value, dict):
            return [[str(key), self._plain(v)] for key, v in value.items()]
        if isinstance(value, Tensor):
            return _constant(value)
        known = (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)
        return value if isinstance(value, known) else None


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Name → argument of an operation, with defaults; without what does nothing in evaluation mode."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {**{f"argument {k}": v for k, v in enumerate(node.args)}, **node.kwargs}
    found = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    found |= dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    idle = {name for name, switch in ONLY_IN_TRAINING.items() if found.get(switch) is False}
    return {name: value for name, value in found.items() if name not in NOT_COMPUTED | idle}


def _path(node: torch.fx.Node) -> str:
    """The user's module that a node comes from; the first part is our own wrapper's name for the model."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return re.sub(r"@\d+", "", path).partition(".")[2]


def _constant(tensor: Tensor) -> Given:
    return Given("constant", digest(tensor), f"a constant of shape {tuple(tensor.shape)}")


def _same(a: Any, b: Any, *, sizes: bool) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, sizes=sizes) for x, y in zip(a, b, strict=True))
    if sizes and type(a) is int and type(b) is int:
        return True
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _described(operation: Operation, name: str, mine: Any, theirs: Any, names: tuple[str, str]) -> str:
    """How an argument differs."""
    first, second = names
    if operation.name.startswith("partialfusion.norm") and name == "settings":
        keys = ("eps", "centred", "positions", "offset")
        name, mine, theirs = next((k, x, y) for k, x, y in zip(keys, mine, theirs, strict=True) if x != y)
        return f"the norm has {name}={mine} in {first} and {theirs} in {second}"
    if not any(isinstance(v, Given) for v in tree_leaves([mine, theirs])):
        return f"{operation.short} has {name} {mine} in {first} and {theirs} in {second}"
    pairs = zip(tree_leaves(mine), tree_leaves(theirs), strict=False)
    x, y = next(((x, y) for x, y in pairs if not _same(x, y, sizes=False)), (mine, theirs))
    if isinstance(x, Given) and isinstance(y, Given) and x.text == y.text:
        other = "other numbers" if x.kind == "constant" else f"another {x.kind}"
        return f"{operation.short} takes {x.text} in {first} and {other} in {second}"
    shown = [v.text if isinstance(v, Given) else str(v) for v in (x, y)]
    return f"{operation.short} takes {shown[0]} in {first} and {shown[1]} in {second}"
