"""What rules see and call: the tracer, which holds the labels and what is bound to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..core.meta import remembered
from .labels import FIXED, FREE, Labels, Mark, compact, varying_dims
from .program import Program
from .registry import NoRuleError
from .repeats import combined
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
        normed: path of a norm across channels → the labels of its channels.
        equal_widths: weights that read spaces along axis 1 whose widths the code has as one number, such as those of
            the layers of an LSTM.
        scalars: parameter of a single number → where it met channels: the (n,) labels, their dimension from the end,
            and its role.
        constants: buffers that count as constants.
        follows_channels: buffers that were taken for constants and have an entry for every channel.
        unknown: operations without a rule, with the number of times they were met.
        nonlinear_after: non-linear operations between the last weights and the outputs.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.labels = Labels()
        self.bound: dict[tuple[str, int], list[AxisLabels]] = {}
        self.direct: dict[str, Tensor] = {}
        self.norms: list[Norm] = []
        self.normed: dict[str, Tensor] = {}
        self.equal_widths: list[tuple[str, ...]] = []
        self.scalars: dict[str, list[tuple[Tensor, int, Role]]] = {}
        self.constants: set[str] = set()
        self.follows_channels: set[str] = set()
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

    def constant(self, tensor: Tensor, buffer: str | None = None) -> Value:
        """A tensor that the code or a buffer holds, copied so that it can be written into.

        On the meta device, whole numbers that are not remembered are just fixed; other numbers are drawn at random, so
        that no two are equal.
        """
        tensor = remembered(tensor)
        buffers = frozenset[str]() if buffer is None else frozenset([buffer])
        if not tensor.is_meta:
            return Constant(tensor.detach().cpu().clone(), buffers)
        if not tensor.is_floating_point():
            return self.fixed(tensor.shape)
        generator = torch.Generator().manual_seed(0)
        return Constant(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype), buffers)

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
        rows = _rows_along(labels, dims)
        if len(self.labels.find(rows).sort(1).values.unique(dim=0)) == 1:
            self.permutable(rows, f"{self.operation} runs across it")
            return torch.full(kept, FIXED)
        return self.blocks(rows, f"{self.operation} runs across it").view(kept)

    def blocks(self, rows: Tensor, reason: str) -> Tensor:
        """Channels that an operation treats as sets, one set a row of (positions × n) labels.

        Returns the (positions,) labels of the sets. Each set is a block of its space: blocks may be exchanged, kept
        apart and removed as wholes.
        """
        found, which = self.labels.find(rows).sort(1).values.unique(dim=0, return_inverse=True)
        if not bool((found > FIXED).all()):
            self.rigid(found, reason)
            return torch.full_like(which, FIXED)
        self.labels.mark(found, Mark("set", reason))
        return self.labels.nest(found)[which]

    def together(self, groups: Tensor) -> None:
        """Each row of (groups × n) labels is a unit: its members move together, in their order."""
        for row in groups[(groups == FIXED).any(1)]:
            self.rigid(row, "grouped with the network's input")
        self.labels.glue(groups)

    def keep_order(self, labels: Tensor, dims: list[int], *, least: int = 2) -> bool:
        """Let the channels along `dims` keep their order, if they stand in several sets of their own: each set then
        moves as one unit, such as the channels of a head that positions rotate. Whether that is so.

        Args:
            labels: the labels.
            dims: what stands along these is a set.
            least: the number of sets below which nothing is done.
        """
        rows = self.labels.find(_rows_along(compact(labels), dims)).unique(dim=0)
        every = torch.cat([row.unique() for row in rows])
        if len(rows) < least or not bool((rows > FIXED).all()) or len(every.unique()) < len(every):
            return False
        self.together(rows)
        return True

    def are_apart(self, labels: Tensor, dim: int) -> bool:
        """Whether one place along a dimension meets several channels of one weight: these are in several sets, such as
        heads. Otherwise what meets there (a class token and patches) is one channel that was written by several."""
        first = self.labels.find(labels.select(dim, 0)).unique()
        for group in self.bound.values():
            for bound in group:
                if int(torch.isin(first[first > FIXED], self.labels.find(bound.labels)).sum()) > 1:
                    return True
        return False

    def norm_across(self, path: str, labels: Tensor) -> None:
        """Record that a norm runs across these (n,) channels; the same each time the module is used."""
        if path in self.normed:
            self.labels.unite(self.normed[path], labels)
        self.normed[path] = labels

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
        plain = [v for v in values if isinstance(v, Constant) or (isinstance(v, Activation) and not v.has_channels)]
        if len(plain) == len(values) and any(a.numbers is not None for a in computed):
            return combined(plain, shape)
        result = self.meet(computed, shape)
        for value in values:
            if isinstance(value, Parameter):
                result = self._apply_parameter(value, result, role)
            elif isinstance(value, Constant):
                self._apply_constant(value, result, role)
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
        return Activation(result, sources, nonlinear_after, self._sides(operands, shape))

    def _sides(self, operands: Sequence[Activation], shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
        """The sides of the one product of channels among the operands, where the others are alike for all of them."""
        products = [a for a in operands if a.sides is not None]
        others = [a.labels for a in operands if a.sides is None]
        if len(products) != 1 or tuple(products[0].labels.shape) != shape:
            return None
        return None if any({-1, -2} & _from_the_end(x) for x in others) else products[0].sides

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
        if along and not (bool(where.all()) and self.keep_order(other, [other.dim() + d for d in along])):
            met = torch.where(where, compact(other), FREE)
            self.rigid(met, "combined with values that do not follow its channels")

    def _apply_constant(self, constant: Constant, result: Activation, role: Role) -> None:
        """Where a constant differs along channels, they keep their order: in each of several sets of their own, or, if
        it scales by position too (rotary embeddings), in one. Otherwise it must follow the channels."""
        value = constant.value
        offset = result.labels.dim() - value.dim()
        varying = [d for d in varying_dims(result.labels) if d >= offset and value.shape[d - offset] > 1]
        along = [d for d in varying if bool((value != value.narrow(d - offset, 0, 1)).any())]
        by_position = any(n > 1 and d + offset not in along for d, n in enumerate(value.shape))
        ordered = bool(along) and self.keep_order(
            result.labels, along, least=1 if role == "scales" and by_position else 2
        )
        if along and not ordered:
            self.rigid(result.labels, "meets a constant that differs between channels")
        if varying and not ordered:
            self.follows_channels |= constant.buffers

    def _apply_parameter(self, parameter: Parameter, result: Activation, role: Role) -> Activation:
        varying = varying_dims(result.labels)
        offset = result.labels.dim() - len(parameter.shape)
        along = [d for d in varying if d >= offset and parameter.shape[d - offset] > 1]
        if not along:
            if _size(parameter.shape) == 1:
                self._scaled_by_one(parameter, result, varying, role)
            return result
        if len(varying) == 1:
            labels = self.channels(result, along[0])
            self.bind(parameter, along[0] - offset, labels, role)
            return replace(result, labels=self.labels.find(compact(result.labels)).expand(result.labels.shape))
        return self.meet([result, self.activation(parameter)], tuple(result.labels.shape))

    def _scaled_by_one(self, parameter: Parameter, result: Activation, varying: list[int], role: Role) -> None:
        """One number for all channels: it can be given to each of them, where they stand along one dimension."""
        dim = varying[0] if len(varying) == 1 else 0
        labels = self.channels(result, dim) if len(varying) == 1 else torch.tensor([FIXED])
        self.scalars.setdefault(parameter.name, []).append((labels, dim - result.labels.dim(), role))


def _rows_along(labels: Tensor, dims: list[int]) -> Tensor:
    """(rows × n) the labels with `dims` flattened into rows."""
    moved = labels.movedim(dims, list(range(-len(dims), 0)))
    return moved.flatten(-len(dims)).reshape(-1, _size(moved.shape[-len(dims) :]))


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
