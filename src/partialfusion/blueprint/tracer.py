"""Runs a program on channel labels instead of numbers."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .labels import FIXED, FREE, Labels, Mark, compact, varying_dims
from .program import Program
from .spaces import Norm, Role


@dataclass(frozen=True)
class Activation:
    """A tensor that the network computes: labels of its shape, and the weights that computed it."""

    labels: Tensor
    sources: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Parameter:
    """A parameter or buffer, possibly with its axes in another order: dimension d is stored axis axes[d]."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on inputs or parameters."""

    value: Tensor


Value = Activation | Parameter | Constant
Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}


class NoRuleError(Exception):
    """Raised by a rule for a case it does not cover; the operation then counts as unknown."""


def rule(*operations: str) -> Callable[[Rule], Rule]:
    """Register a function for operations, named `aten.linear` or, for ATen, just `linear`.

    The function gets the tracer and the operation's arguments, tensors as Activation, Parameter or Constant, and
    returns the value (or a tuple of values) of the operation.
    """

    def register(function: Rule) -> Rule:
        for name in operations:
            RULES[name if "." in name else f"aten.{name}"] = function
        return function

    return register


@dataclass
class AxisLabels:
    """The labels bound to one axis of a parameter."""

    parameter: str
    axis: int
    role: Role
    labels: Tensor
    output_dim: int | None


class Tracer:
    """What a rule sees while a program runs on labels; afterwards, the bindings and marks that were found."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.labels = Labels()
        self.bound: dict[tuple[str, int], list[AxisLabels]] = {}
        self.direct: dict[str, Tensor] = {}
        self.norms: list[Norm] = []
        self.unknown: Counter[str] = Counter()
        self.outputs: list[tuple[int, ...]] = []
        self.operation = ""
        self._meta: Any = None

    # ---- running ----

    def run(self) -> Tracer:
        values: dict[torch.fx.Node, Any] = {}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                values[node] = self._placeholder(node)
            elif node.op == "get_attr":
                values[node] = Constant(operator.attrgetter(node.target)(self.program.graph.owning_module))
            elif node.op == "call_function":
                values[node] = self._call(node, values)
            elif node.op == "output":
                self._finish(tree_map(lambda n: values.get(n, n), node.args))
        return self

    def _placeholder(self, node: torch.fx.Node) -> Any:
        meta = node.meta.get("val")
        if node.name in self.program.names:
            name = self.program.names[node.name]
            tensor = self.program.tensors[name]
            if not tensor.is_floating_point():
                return Constant(tensor)
            return Parameter(name, tuple(tensor.shape), tuple(range(tensor.dim())))
        if node.name in self.program.constants:
            return Constant(self.program.constants[node.name])
        return self.fixed(meta.shape) if isinstance(meta, Tensor) else meta

    def _call(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
        def lookup(tree: Any) -> Any:
            return tree_map(lambda n: values[n] if isinstance(n, torch.fx.Node) else n, tree)

        args, kwargs = lookup(list(node.args)), lookup(dict(node.kwargs))
        if node.target is operator.getitem:
            return args[0][args[1]]
        self._meta = node.meta.get("val")
        if self._meta is None:
            return None
        schema = getattr(node.target, "_schema", None)
        name = schema.name.replace("::", ".") if schema else str(node.target)
        self.operation = name.removeprefix("aten.")
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Value)]
        if all(isinstance(v, Constant) for v in tensors) and not _is_random(node.target):
            return self._fold(node.target, args, kwargs)
        in_place = name.endswith("_") and not name.endswith("__")
        function = RULES.get(name) or RULES.get(name.rstrip("_"))
        try:
            if function is None:
                raise NoRuleError
            result = function(self, *args, **kwargs)
        except NoRuleError:
            return self._no_rule(tensors)
        if in_place and isinstance(result, Activation):
            self._written_in_place(node, values, args[0], result)
        return result

    def _fold(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An operation on constants alone is carried out."""

        def plain(value: Any) -> Any:
            return value.value.cpu() if isinstance(value, Constant) else value

        is_constant = lambda v: isinstance(v, Constant)  # noqa: E731
        args, kwargs = tree_map(plain, (args, kwargs), is_leaf=is_constant)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        result = target(*args, **kwargs)
        return tree_map(lambda t: Constant(t) if isinstance(t, Tensor) else t, result)

    def _no_rule(self, tensors: Sequence[Value]) -> Any:
        self.unknown[self.operation] += 1
        for value in tensors:
            if not isinstance(value, Constant):
                self.rigid(self.activation(value).labels, f"{self.operation} has no rule")
        return tree_map(lambda m: self.fixed(m.shape) if isinstance(m, Tensor) else m, self._meta)

    def _written_in_place(
        self, node: torch.fx.Node, values: dict[torch.fx.Node, Any], before: Any, result: Activation
    ) -> None:
        """The overwritten tensor has the result's labels from now on; other views of it cannot be told."""
        old = self.activation(before).labels
        if bool(((old <= FIXED) & (result.labels > FIXED)).any()):
            self.rigid(result.labels, f"{self.operation} writes in place")
        values[node.args[0]] = result  # type: ignore[index]

    def _finish(self, outputs: Any) -> None:
        for value in tree_leaves(outputs):
            if isinstance(value, Value):
                labels = self.activation(value).labels
                self.outputs.append(tuple(labels.shape))
                self.rigid(labels, "output")

    # ---- for rules ----

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operation's (first) result."""
        first = next(m for m in tree_leaves(self._meta) if isinstance(m, Tensor))
        return tuple(first.shape)

    @property
    def single_result(self) -> bool:
        """Whether the operation returns one tensor rather than several."""
        return isinstance(self._meta, Tensor)

    def fixed(self, shape: Sequence[int]) -> Activation:
        """A tensor whose elements belong to no channel and may differ from each other."""
        return Activation(torch.full((1,) * len(shape), FIXED).expand(tuple(shape)))

    def activation(self, value: Value) -> Activation:
        """Any value with labels: a parameter gets a label per element, a constant none."""
        if isinstance(value, Activation):
            return value
        if isinstance(value, Constant):
            same = value.value.numel() == 0 or bool((value.value == value.value.reshape(-1)[0]).all())
            label = FREE if same else FIXED
            return Activation(torch.full((1,) * value.value.dim(), label).expand(tuple(value.value.shape)))
        if value.name not in self.direct:
            stored = [value.shape[value.axes.index(a)] for a in range(len(value.axes))]
            self.direct[value.name] = self.labels.fresh(max(1, _size(stored))).view(stored)
        return Activation(self.direct[value.name].permute(value.axes))

    def rigid(self, labels: Tensor, reason: str) -> None:
        self.labels.mark(labels, Mark("rigid", reason))

    def permutable(self, labels: Tensor, reason: str) -> None:
        """These labels may be exchanged with each other and with no others."""
        self.labels.mark(labels, Mark("permutable", reason))

    def channels(self, x: Activation, dim: int) -> Tensor:
        """(n,) the labels along one dimension.

        A parameter that binds index c of this dimension meets whatever stands there at any position, so these
        labels become one.
        """
        small = self.labels.find(compact(x.labels)).movedim(dim, -1)
        if small.shape[-1] != x.labels.shape[dim]:
            small = small.expand(*small.shape[:-1], x.labels.shape[dim])
        rows = small.reshape(-1, small.shape[-1]).unique(dim=0)
        most = rows.max(0).values
        if len(rows) > 1:
            self.labels.unite(rows, most.expand_as(rows))
            mixed = (most > FIXED) & (rows == FIXED).any(0)
            if bool(mixed.any()):
                self.rigid(most[mixed], "shares its place with the network's input")
        return self.labels.find(most)

    def bind(self, parameter: Parameter, dim: int, labels: Tensor, role: Role, output_dim: int | None = None) -> None:
        """Say that the dimension `dim` of a parameter carries these channels."""
        axis = parameter.axes[dim]
        bound = self.bound.setdefault((parameter.name, axis), [])
        for other in bound:
            self.labels.unite(other.labels, labels)
            mixed = (self.labels.find(other.labels) > FIXED) != (self.labels.find(labels) > FIXED)
            if bool(mixed.any()):
                self.rigid(torch.cat([other.labels[mixed], labels[mixed]]), f"{parameter.name} also reads the input")
        if all(other.role != role for other in bound):
            bound.append(AxisLabels(parameter.name, axis, role, labels, output_dim))

    def written(self, parameter: Parameter, dim: int, output_dim: int) -> Tensor:
        """(n,) the labels that a weight writes; the same every time the weight is used."""
        axis = parameter.axes[dim]
        for other in self.bound.get((parameter.name, axis), ()):
            if other.role == "writes":
                return other.labels
        labels = self.labels.fresh(parameter.shape[dim])
        self.bind(parameter, dim, labels, "writes", output_dim)
        return self.labels.find(labels)

    def spread(self, labels: Tensor, dim: int, sources: frozenset[str]) -> Activation:
        """Labels (n,) along dimension `dim` (from the end) of the operation's result."""
        shape = self.shape
        view = [1] * len(shape)
        view[dim] = len(labels)
        return Activation(labels.view(view).expand(shape), sources)

    def merge(self, *operands: Any, role: Role = "scales") -> Activation:
        """The result of an element-wise operation: the labels that meet become one."""
        values = [v for v in operands if isinstance(v, Value)]
        shape = self.shape
        computed = [v for v in values if isinstance(v, Activation)]
        if not computed:
            computed = [self.activation(v) for v in values if isinstance(v, Parameter)]
            values = [v for v in values if isinstance(v, Constant)]
        result = self._meet(computed, shape)
        for value in values:
            if isinstance(value, Parameter):
                result = self._apply_parameter(value, result, role)
            elif isinstance(value, Constant):
                self._apply_constant(value, result)
        return result

    def _meet(self, operands: Sequence[Activation], shape: tuple[int, ...]) -> Activation:
        sources = frozenset[str]().union(*(a.sources for a in operands))
        result = compact(operands[0].labels)
        for other in operands[1:]:
            a, b = torch.broadcast_tensors(result, compact(other.labels))
            self.labels.unite(a, b)
            result = torch.maximum(a, b)
        result = self.labels.find(result).expand(shape)
        for operand in operands:
            if bool((compact(operand.labels) == FIXED).any()):
                self._meets_fixed(operand.labels.shape, result, "combined with what does not follow its channels")
        return Activation(result, sources)

    def _meets_fixed(self, shape: Sequence[int], labels: Tensor, reason: str) -> None:
        """An operand of this shape that may differ from element to element fixes the channels it runs along."""
        offset = labels.dim() - len(shape)
        if any(d >= offset and shape[d - offset] > 1 for d in varying_dims(labels)):
            self.rigid(labels, reason)

    def _apply_constant(self, constant: Constant, result: Activation) -> None:
        value = constant.value
        offset = result.labels.dim() - value.dim()
        for dim in varying_dims(result.labels):
            d = dim - offset
            if d >= 0 and value.shape[d] > 1 and bool((value != value.narrow(d, 0, 1)).any()):
                self.rigid(result.labels, "meets a constant that differs between channels")

    def _apply_parameter(self, parameter: Parameter, result: Activation, role: Role) -> Activation:
        varying = varying_dims(result.labels)
        offset = result.labels.dim() - len(parameter.shape)
        along = [d for d in varying if d >= offset and parameter.shape[d - offset] > 1]
        if not along:
            return result
        if len(varying) == 1:
            labels = self.channels(result, along[0])
            self.bind(parameter, along[0] - offset, labels, role)
            return replace(result, labels=self.labels.find(compact(result.labels)).expand(result.labels.shape))
        return self._meet([result, self.activation(parameter)], tuple(result.labels.shape))


def _is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _size(shape: Sequence[int]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
