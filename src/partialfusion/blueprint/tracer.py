"""What rules see and call: the tracer, which holds the labels and what is bound to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .labels import FIXED, FREE, Labels, Mark, compact, varying_dims
from .program import Program
from .registry import NoRuleError
from .spaces import Norm, Role
from .values import Activation, Constant, Parameter, Value


@dataclass
class AxisLabels:
    """The labels bound to one axis of a parameter, and the channel dimension (from the end) of the activation."""

    parameter: str
    axis: int
    role: Role
    labels: Tensor
    dim: int | None


class Tracer:
    """What a rule sees while a program runs on labels; afterwards, the bindings and marks that were found.

    Attributes:
        operation: name of the operation at hand, without `aten.`.
        meta: tensors without data, of the shapes that the operation returns.
        bound: (parameter, axis) → the labels bound there, by role.
        direct: parameter → labels (of its shape) of one that is used element by element.
        norms: normalisations with stored statistics.
        unknown: operations without a rule, with the number of times they were met.
        nonlinear_after: non-linear operations between the last weights and the outputs.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.labels = Labels()
        self.bound: dict[tuple[str, int], list[AxisLabels]] = {}
        self.direct: dict[str, Tensor] = {}
        self.norms: list[Norm] = []
        self.unknown: Counter[str] = Counter()
        self.nonlinear_after: set[str] = set()
        self.operation = ""
        self.meta: Any = None

    def begin(self, operation: str, meta: Any) -> None:
        """The next operation."""
        self.operation, self.meta = operation, meta

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the tensors that the operation returns."""
        return [tuple(m.shape) for m in tree_leaves(self.meta) if isinstance(m, Tensor)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operation's (first) result."""
        return self.shapes[0]

    @property
    def single_result(self) -> bool:
        """Whether the operation returns one tensor rather than several."""
        return isinstance(self.meta, Tensor)

    def constant(self, tensor: Tensor) -> Value:
        """A tensor that the code holds, copied so that it can be written into; one on the meta device is just fixed."""
        return self.fixed(tensor.shape) if tensor.is_meta else Constant(tensor.detach().cpu().clone())

    def fixed(self, shape: Sequence[int]) -> Activation:
        """A tensor whose elements belong to no channel and may differ from each other, wherever it is not expanded."""
        return Activation(torch.full(tuple(shape), FIXED))

    def activation(self, value: Value) -> Activation:
        """Any value with labels: a parameter gets a label per element, a constant none."""
        if isinstance(value, Activation):
            return value
        if isinstance(value, Constant):
            same = value.value.numel() == 0 or bool((value.value == value.value.reshape(-1)[0]).all())
            if not same:
                return self.fixed(value.value.shape)
            return Activation(torch.full((1,) * value.value.dim(), FREE).expand(tuple(value.value.shape)))
        if value.name not in self.direct:
            stored = [value.shape[value.axes.index(a)] for a in range(len(value.axes))]
            self.direct[value.name] = self.labels.fresh(max(1, _size(stored))).view(stored)
        return Activation(self.direct[value.name].permute(value.axes))

    def rigid(self, labels: Tensor, reason: str) -> None:
        self.labels.mark(labels, Mark("rigid", reason))

    def permutable(self, labels: Tensor, reason: str) -> None:
        """These labels may be exchanged with each other and with no others."""
        self.labels.mark(labels, Mark("permutable", reason))

    def sets(self, labels: Tensor, dims: list[int]) -> Tensor:
        """What stands along `dims` is treated as a set. Returns the sets' labels, `dims` reduced to size one."""
        kept = [1 if d in dims else n for d, n in enumerate(labels.shape)]
        rows = labels.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims)).reshape(_size(kept), -1)
        return self.blocks(rows, f"{self.operation} runs across it").view(kept)

    def blocks(self, rows: Tensor, reason: str) -> Tensor:
        """Channels that an operation treats as sets, one set a row of (positions × n) labels.

        Returns the (positions,) labels of the sets: where there are several, each set is a block of its space.
        """
        found, which = self.labels.find(rows).sort(1).values.unique(dim=0, return_inverse=True)
        self.permutable(found, reason)
        if len(found) == 1:
            return torch.full_like(which, FIXED)
        real = (found > FIXED).all(1)
        if not bool(real.all()):
            self.rigid(found, reason)
            return torch.full_like(which, FIXED)
        return self.labels.nest(found)[which]

    def together(self, groups: Tensor) -> None:
        """Each row of (groups × n) labels is a unit: its members move together, in their order."""
        for row in groups[(groups == FIXED).any(1)]:
            self.rigid(row, "grouped with the network's input")
        self.labels.glue(groups)

    def channels(self, x: Activation, dim: int) -> Tensor:
        """(n,) the labels along one dimension.

        A parameter that binds index c of this dimension meets whatever stands there at any position, so these
        labels become one.
        """
        small = self.labels.find(compact(x.labels)).movedim(dim, -1)
        if small.shape[-1] != x.labels.shape[dim]:
            small = small.expand(*small.shape[:-1], x.labels.shape[dim])
        rows = small.reshape(-1, small.shape[-1])
        rows = rows[:1] if bool((rows == rows[:1]).all()) else rows.unique(dim=0)
        most = rows.max(0).values
        if len(rows) > 1:
            self.labels.unite(rows, most.expand_as(rows))
            mixed = (most > FIXED) & (rows == FIXED).any(0)
            if bool(mixed.any()):
                self.rigid(most[mixed], "stands where the network's input stands too")
        return self.labels.find(most)

    def bind(
        self, parameter: Parameter, dim: int, labels: Tensor, role: Role, activation_dim: int | None = None
    ) -> None:
        """Record that the dimension `dim` of a parameter carries these channels.

        For a weight that computes with them, `activation_dim` is where the activation has them, from the end.
        """
        axis = parameter.axes[dim]
        if len(labels) != parameter.shape[dim]:
            raise NoRuleError(f"{parameter.name} is broadcast")
        bound = self.bound.setdefault((parameter.name, axis), [])
        for other in bound:
            self.labels.unite(other.labels, labels)
            mixed = (self.labels.find(other.labels) > FIXED) != (self.labels.find(labels) > FIXED)
            if bool(mixed.any()):
                self.rigid(torch.cat([other.labels[mixed], labels[mixed]]), f"{parameter.name} also reads the input")
        if all(other.role != role for other in bound):
            bound.append(AxisLabels(parameter.name, axis, role, labels, activation_dim))

    def written(self, parameter: Parameter, dim: int, activation_dim: int) -> Tensor:
        """(n,) the labels that a weight writes; the same every time the weight is used."""
        axis = parameter.axes[dim]
        for other in self.bound.get((parameter.name, axis), ()):
            if other.role == "writes":
                return other.labels
        labels = self.labels.fresh(parameter.shape[dim])
        self.bind(parameter, dim, labels, "writes", activation_dim)
        return self.labels.find(labels)

    def spread(self, labels: Tensor, dim: int, of: Activation) -> Activation:
        """Labels (n,) along dimension `dim` (from the end) of the operation's result, otherwise like `of`."""
        shape = self.shape
        view = [1] * len(shape)
        view[dim] = len(labels)
        return of.with_labels(labels.view(view).expand(shape))

    def computed(self, labels: Tensor, dim: int, weight: Parameter) -> Activation:
        """Labels (n,) along dimension `dim` (from the end) of what a weight computes."""
        return self.spread(labels, dim, Activation(labels, frozenset([weight.name])))

    def merge(self, *operands: Any, role: Role = "scales") -> Activation:
        """The result of an element-wise operation: the labels that meet become one."""
        values = [v for v in operands if isinstance(v, Value)]
        shape = self.shape
        computed = [v for v in values if isinstance(v, Activation)]
        if not computed:
            computed = [self.activation(v) for v in values if isinstance(v, Parameter)]
            values = [v for v in values if isinstance(v, Constant)]
        if not computed:
            return self.fixed(shape)
        result = self.meet(computed, shape)
        for value in values:
            if isinstance(value, Parameter):
                result = self._apply_parameter(value, result, role)
            elif isinstance(value, Constant):
                self._apply_constant(value, result)
        return result

    def meet(self, operands: Sequence[Activation], shape: tuple[int, ...]) -> Activation:
        """Activations combined element by element: the labels that meet become one, but for a set and its members."""
        sources = frozenset[str]().union(*(a.sources for a in operands))
        nonlinear_after = frozenset[str]().union(*(a.nonlinear_after for a in operands))
        result = operands[0].labels
        for other in operands[1:]:
            result = self._meet_two(result, other.labels)
        result = self.labels.find(compact(result)).expand(shape)
        self.labels.touch(result)
        return Activation(result, sources, nonlinear_after)

    def _meet_two(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self._aside(x, y), self._aside(y, x)
        for one, other in ((x, y), (y, x)):
            self._meets_fixed(one, other)
        a, b = torch.broadcast_tensors(self.labels.find(compact(x)), self.labels.find(compact(y)))
        parent = self.labels.parents()
        below, above = parent[a] == b, parent[b] == a
        self.labels.unite(a.masked_fill(below | above, FREE), b)
        met = torch.where(below, a, torch.where(above, b, torch.maximum(a, b)))
        return met.expand(torch.broadcast_shapes(x.shape, y.shape))

    def _aside(self, labels: Tensor, other: Tensor) -> Tensor:
        """A channel that is broadcast over channels of another space is not one of them."""
        mine, theirs = _from_the_end(labels), _from_the_end(other)
        if not theirs or mine & theirs or not bool((compact(labels) > FIXED).any()):
            return labels
        parent, own = self.labels.parents(), self.labels.find(compact(labels))
        a, b = torch.broadcast_tensors(own, self.labels.find(compact(other)))
        if bool(((parent[b] == a) | (b <= FIXED)).all()) or any(_size_from_end(labels, d) > 1 for d in theirs):
            return labels
        self.rigid(own, "broadcast over other channels")
        if mine:
            self.rigid(other, "multiplied with every one of other channels")
        return torch.where(own > FIXED, FREE if not mine else FIXED, own).expand(labels.shape)

    def _meets_fixed(self, labels: Tensor, other: Tensor) -> None:
        """What may differ from element to element fixes the channels it runs along."""
        where = compact(labels) == FIXED
        if not bool(where.any()):
            return
        along = [d for d in _from_the_end(other) if _size_from_end(labels, d) > 1 and labels.stride(d) != 0]
        if along:
            met = torch.where(where, compact(other), FREE)
            self.rigid(met, "combined with values that do not follow its channels")

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
        return self.meet([result, self.activation(parameter)], tuple(result.labels.shape))


def _from_the_end(labels: Tensor) -> set[int]:
    """Dimensions along which the labels vary, counted from the end."""
    return {d - labels.dim() for d in varying_dims(labels)}


def _size_from_end(labels: Tensor, dim: int) -> int:
    return labels.shape[dim] if -dim <= labels.dim() else 1


def _size(shape: Sequence[int]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
