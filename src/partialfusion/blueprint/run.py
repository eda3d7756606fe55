"""Runs a program on channel labels instead of numbers: every operation by its rule."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..core.modules import first_line
from ..errors import TraceError
from .labels import FIXED
from .program import Program
from .registry import RULES, STRICT, NoRuleError, RuleError, is_strict
from .spaces import OUTPUT
from .tracer import Tracer
from .values import Activation, Constant, Parameter, Value

log = logging.getLogger(__name__)

STATISTICS = ("batch_norm", "instance_norm", "view_norm")  # operations whose buffers have an entry for every channel
# Operations that run a part of the program in another mode, which makes no difference to channels.
WRAPPERS = ("wrap_with_autocast", "wrap_with_set_grad_enabled")


def run(program: Program) -> Tracer:
    """Run a program on labels; the tracer then holds the bindings and marks that were found.

    Buffers count as constants, but for statistics of norms. One that turns out to differ from channel to channel, such
    as a table of positions that is added to a stream, follows the channels like a parameter: the program runs again.
    """
    carried = _statistics(program)
    while True:
        tracer = _Run(program, carried).run()
        more = {n for n in tracer.follows_channels - carried if program.tensors[n].is_floating_point()}
        if not more:
            return tracer
        carried |= more


class _Run:
    """One run: the tracer that the rules see, and the value of every node so far."""

    def __init__(self, program: Program, carried: frozenset[str]) -> None:
        self.program = program
        self.carried = carried
        self.tracer = Tracer(program)
        self.values: dict[torch.fx.Node, Any] = {}
        self.reported: set[str] = set()

    def run(self) -> Tracer:
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node)
        self._finish(self._run_graph(self.program.graph))
        return self.tracer

    def _run_graph(self, graph: torch.fx.Graph) -> Any:
        """What a graph returns, the values of its placeholders given."""
        for node in graph.nodes:
            if node.op == "get_attr":
                found = operator.attrgetter(node.target)(graph.owning_module)
                self.values[node] = self.tracer.constant(found) if isinstance(found, Tensor) else found
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                return self._looked_up(node.args[0])
        return None

    def _placeholder(self, node: torch.fx.Node) -> Any:
        meta = node.meta.get("val")
        if node.name in self.program.names:
            name = self.program.names[node.name]
            tensor = self.program.tensors[name]
            if not isinstance(tensor, torch.nn.Parameter) and name not in self.carried:
                self.tracer.constants.add(name)
                return self.tracer.constant(tensor, name)
            return Parameter(name, tuple(tensor.shape), tuple(range(tensor.dim())))
        if node.name in self.program.constants:
            return self.tracer.constant(self.program.constants[node.name])
        return self.tracer.fixed(meta.shape) if isinstance(meta, Tensor) else meta

    def _finish(self, outputs: Any) -> None:
        for value in tree_leaves(outputs):
            if isinstance(value, Value):
                found = self.tracer.activation(value)
                self.tracer.nonlinear_after |= found.nonlinear_after
                self.tracer.rigid(found.labels, OUTPUT)
        self._finish_others()

    def _finish_others(self) -> None:
        """Channels that a weight writes and nothing reads belong to an output that is not the result. The models are
        mixed there as well."""
        tracer, bound = self.tracer, [b for group in self.tracer.bound.values() for b in group]
        written, read = (
            torch.cat(
                [torch.empty(0, dtype=torch.long), *(tracer.labels.find(b.labels) for b in bound if b.role == role)]
            )
            for role in ("writes", "reads")
        )
        for node in self.program.graph.nodes:
            if node.op == "call_function" and not node.users:
                for value in tree_leaves(self.values[node]):
                    if isinstance(value, Activation):
                        ends = tracer.labels.find(value.labels).unique()
                        ends = ends[torch.isin(ends, written) & ~torch.isin(ends, read)]
                        if len(ends):
                            tracer.rigid(ends, OUTPUT)

    def _call(self, node: torch.fx.Node) -> Any:
        args, kwargs = self._looked_up(list(node.args)), self._looked_up(dict(node.kwargs))
        if node.target is operator.getitem:
            return args[0][args[1]]
        parts = [a for a in args if isinstance(a, torch.fx.GraphModule)]
        if len(parts) == 1 and str(node.target) in WRAPPERS:
            return self._inline(parts[0].graph, args[args.index(parts[0]) + 1 :])
        meta = node.meta.get("val")
        if meta is None:
            return None
        schema = getattr(node.target, "_schema", None)
        name = schema.name.replace("::", ".") if schema else str(node.target)
        _check_sizes(name, meta)
        in_place = name.endswith("_") and not name.endswith("__")
        self.tracer.begin(name.removeprefix("aten.").rstrip("_"), meta)
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Value)]
        if all(isinstance(v, Constant) for v in tensors) and not _is_random(node.target):
            return _fold(node.target, args, kwargs)
        try:
            result = self._by_rule(name, args, kwargs)
        except Exception as error:
            reason = self._why_no_rule(name, error)
            if in_place:
                self._overwritten(node)
            return self._no_rule(tensors, reason)
        if in_place and isinstance(result, Activation):
            self._written_in_place(node, args[0], result)
        return result

    def _inline(self, graph: torch.fx.Graph, operands: Sequence[Any]) -> Any:
        """What a part of the program that is a graph of its own returns."""
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        self.values.update(zip(placeholders, operands, strict=True))
        return self._run_graph(graph)

    def _looked_up(self, tree: Any) -> Any:
        return tree_map(lambda n: self.values[n] if isinstance(n, torch.fx.Node) else n, tree)

    # ---- rules ----

    def _by_rule(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What the operation's rule returns: a value for every tensor of the operation's result, of its shape."""
        rule = RULES.get(name) or RULES.get(name.rstrip("_"))
        if rule is None:
            raise NoRuleError
        result = rule(self.tracer, *args, **kwargs)
        found, wanted = [_shape_of(v) for v in tree_leaves(result)], self.tracer.shapes
        if isinstance(result, Value) != self.tracer.single_result or found != wanted:
            raise ValueError(f"it returned values of shapes {found} for tensors of shapes {wanted}")
        return result

    def _why_no_rule(self, name: str, error: Exception) -> str:
        """The reason for which the channels that an operation touches are rigid; a bug in its rule is reported."""
        if isinstance(error, NoRuleError):
            log.debug("%s: no rule for this case (%s)", name, error)
            return f"{self.tracer.operation} has no rule"
        message = f"the rule of {name} failed: {first_line(error)}"
        if is_strict():
            raise RuleError(
                f"{message}. For a case that the rule does not cover, raise NoRuleError in it; "
                f"without {STRICT} in the environment this is a warning, and the channels become rigid."
            ) from error
        if message not in self.reported:
            self.reported.add(message)
            log.warning("%s; the channels that it touches become rigid", message)
        return message

    def _no_rule(self, tensors: Sequence[Value], reason: str) -> Any:
        """Make all channels that an operation touches rigid; one that touches none needs no rule."""
        if any(isinstance(v, Parameter) or (isinstance(v, Activation) and v.has_channels) for v in tensors):
            self.tracer.unknown[self.tracer.operation] += 1
        for value in tensors:
            if not isinstance(value, Constant):
                self.tracer.rigid(self.tracer.activation(value).labels, reason)
        return tree_map(lambda m: self.tracer.fixed(m.shape) if isinstance(m, Tensor) else m, self.tracer.meta)

    # ---- writing in place ----

    def _written_in_place(self, node: torch.fx.Node, target: Value, result: Activation) -> None:
        """The tensor written into has the result's labels from now on; channels written over other data are rigid."""
        old = self.tracer.activation(target).labels
        if old.shape == result.labels.shape and bool(((old <= FIXED) & (result.labels > FIXED)).any()):
            self.tracer.rigid(result.labels, f"{self.tracer.operation} writes in place")
            self._overwritten(node)
        self.values[node.args[0]] = result  # type: ignore[index]

    def _overwritten(self, node: torch.fx.Node) -> None:
        """Something unknown was written into a tensor: it and all its views belong to no channel from now on."""
        base = _base(node.args[0])
        for other, value in list(self.values.items()):
            if isinstance(value, Value) and _base(other) is base:
                labels = self.tracer.activation(value).labels
                self.tracer.rigid(labels, f"{self.tracer.operation} writes in place")
                self.values[other] = self.tracer.fixed(labels.shape)


def _statistics(program: Program) -> frozenset[str]:
    """Buffers that hold the statistics of batch or instance norms."""
    users = (
        (node, str(user.target)) for node in program.graph.nodes for user in node.users if node.name in program.names
    )
    return frozenset(program.names[n.name] for n, target in users if any(kind in target for kind in STATISTICS))


def _check_sizes(name: str, meta: Any) -> None:
    for tensor in tree_leaves(meta):
        if isinstance(tensor, Tensor) and not all(isinstance(n, int) for n in tensor.shape):
            raise TraceError(
                f"{name} returns a tensor of shape {tuple(tensor.shape)}, whose size depends on the values of "
                "tensors. Index with whole numbers or slices instead of a mask, or move such parts out of forward."
            )


def _fold(target: Any, args: Any, kwargs: Any) -> Any:
    """Carry out an operation on constants alone."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")  # where constants are, wherever the model is
        return value.value if isinstance(value, Constant) else value

    is_constant = lambda v: isinstance(v, Constant)  # noqa: E731
    known = [v for v in tree_leaves((args, kwargs), is_leaf=is_constant) if isinstance(v, Constant)]
    buffers = frozenset[str]().union(*(v.buffers for v in known))
    args, kwargs = tree_map(plain, (args, kwargs), is_leaf=is_constant)
    result = target(*args, **kwargs)
    return tree_map(lambda t: Constant(t, buffers) if isinstance(t, Tensor) else t, result)


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of a value; None for anything else."""
    if isinstance(value, Parameter):
        return value.shape
    if isinstance(value, (Activation, Constant)):
        return tuple((value.labels if isinstance(value, Activation) else value.value).shape)
    return None


def _base(node: Any) -> Any:
    """The tensor that a view looks at."""
    while isinstance(node, torch.fx.Node) and node.op == "call_function" and node.args:
        aliases = any(r.alias_info and not r.alias_info.is_write for r in _returns(node.target))
        if node.target is not operator.getitem and not aliases:
            break
        node = node.args[0]
    return node


def _returns(target: Any) -> Sequence[Any]:
    return getattr(getattr(target, "_schema", None), "returns", ())


def _is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
