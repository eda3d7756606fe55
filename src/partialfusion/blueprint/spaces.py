"""The blueprint of a model: its channel spaces and their axis bindings. Holds no tensors."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ..core.arrays import Ints
from ..core.same_code import Code
from ..core.text import shorten, table
from .compare import Operation
from .norms import NormLayer

Role = Literal["writes", "reads", "scales"]
Kind = Literal["elastic", "permutable", "rigid"]
# What a whole number that a module keeps repeats: how many heads there are, how many channels they have together, or
# any other width, of what the module's parameters write, of what they read, or of either.
Repeats = Literal["heads", "inner", "width", "written", "read"]
# Why channels are rigid: they are outputs, or move together with some.
OUTPUT, OUTPUT_GROUP = "output", "grouped with the network's output"


def owner(parameter: str) -> str:
    """The path of the module that holds a parameter, or the parameter's own name at the top."""
    return parameter.rpartition(".")[0] or parameter


@dataclass(frozen=True, eq=False)
class AxisBinding:
    """One parameter axis that belongs to a space.

    Attributes:
        parameter: name in the model (buffers count as parameters here).
        axis: the axis of the parameter.
        role: how it takes part in the space; `scales` follows the write kernel like `writes`.
        index: (units × multiplicity) positions on the axis: row u holds the places of unit u.
        dim: for a weight that computes or reads the space, the channel dimension (from the end) of that activation.
    """

    parameter: str
    axis: int
    role: Role
    index: Ints
    dim: int | None = None

    @property
    def key(self) -> tuple[str, int, Role, int]:
        """What must be the same in another trace for the space to be the same."""
        return self.parameter, self.axis, self.role, self.index.shape[1]


@dataclass(frozen=True, eq=False)
class NormBinding:
    """A norm that runs across the channels of a space.

    Attributes:
        path: the module.
        index: (units × multiplicity) positions of the units among the channels that it norms.
    """

    path: str
    index: Ints

    @property
    def key(self) -> tuple[str, int]:
        return self.path, self.index.shape[1]


@dataclass(frozen=True, eq=False)
class Space:
    """The channels that one activation axis carries, with every parameter axis that touches them.

    Attributes:
        name: the module of the first weight that writes it.
        width: number of units.
        kind: what may be done with it.
        reasons: why it is not elastic.
        bindings: every parameter axis that carries it.
        blocks: (width,) for channels that stand in blocks, such as heads of attention: the block of each. Channels
            may be exchanged within a block, and blocks as wholes, together with those of the same bundle.
        bundle: names the spaces whose blocks go together (queries with keys, values, tables of biases).
        norms: the norms that run across its channels.
        step: its width changes by multiples of this: the channels of a head, or what the code ties it to.
        group: names the spaces whose widths change together, by the same number of steps.
    """

    name: str
    width: int
    kind: Kind
    reasons: tuple[str, ...]
    bindings: tuple[AxisBinding, ...]
    blocks: Ints | None = None
    bundle: str | None = None
    norms: tuple[NormBinding, ...] = ()
    step: int = 1
    group: str | None = None

    @property
    def key(self) -> frozenset[tuple[object, ...]]:
        """What must be the same in another trace for the space to be the same."""
        return frozenset([*(b.key for b in self.bindings), *(n.key for n in self.norms)])

    @property
    def steps(self) -> int:
        """The number of steps in its width."""
        return self.width // self.step

    @property
    def heads(self) -> int:
        """The number of its blocks."""
        return 0 if self.blocks is None else int(self.blocks.max()) + 1

    @property
    def is_output(self) -> bool:
        """Whether its channels are outputs and nothing else, so that averaging them mixes the models' outputs."""
        return OUTPUT in self.reasons and OUTPUT_GROUP not in self.reasons

    def index(self, parameter: str, axis: int) -> Ints:
        """(units × multiplicity) places of the units on an axis of a parameter."""
        return next(b.index for b in self.bindings if (b.parameter, b.axis) == (parameter, axis))

    def names(self, role: Role) -> list[str]:
        """The modules whose parameters are bound to the space in this role."""
        return list(dict.fromkeys(owner(b.parameter) for b in self.bindings if b.role == role))

    def demote(self, kind: Kind, reason: str) -> Space:
        return replace(self, kind=kind, reasons=(*self.reasons, reason))


@dataclass(frozen=True)
class Norm:
    """A normalisation with stored statistics.

    Attributes:
        mean, var: names of the buffers.
        sources: the weights that computed its input.
    """

    mean: str
    var: str
    sources: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Blueprint:
    """The spaces and bindings of a model, in the order in which the model computes them.

    Attributes:
        spaces: all channel spaces.
        norms: the normalisations with stored statistics.
        shapes: name → shape of every parameter and buffer.
        unknown: operations that have no rule, with the number of times they were met.
        used: parameters and buffers that the model uses.
        nonlinear_after: non-linear operations between the last weights and the outputs; models are mixed before them.
        checked: what the self-check did, for the table.
        norm_layers: path → norm that runs across a dimension.
        normed: path → how many channels it runs across, for those that run across channels.
        constants: buffers that belong to no channel; all models must have the same.
        tied: weight that is both an embedding and the last layer → path of the norm in front of the last layer, which
            takes the shares of the models.
        shared: weights that are used in several places in ways that no result can follow at once, so that their spaces
            keep their widths.
        scalars: parameter of a single number that scales or shifts all channels of an activation → how many dimensions
            stand behind these. All units have it at position 0; where a width changes, it becomes one number for each.
        follows: class and attribute of whole numbers that repeat a size → what they repeat; None where not known yet.
        operations: what the model computes, in order; all models must compute the same.
        code: knows the model that was traced again.
    """

    spaces: tuple[Space, ...]
    norms: tuple[Norm, ...]
    shapes: Mapping[str, tuple[int, ...]]
    unknown: Mapping[str, int] | None = None
    used: frozenset[str] = frozenset()
    nonlinear_after: tuple[str, ...] = ()
    checked: str = "not checked"
    norm_layers: Mapping[str, NormLayer] = field(default_factory=dict)
    normed: Mapping[str, int] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()
    scalars: Mapping[str, int] = field(default_factory=dict)
    follows: Mapping[tuple[str, str], Repeats] | None = None
    operations: tuple[Operation, ...] = ()
    code: Code = field(default_factory=Code)

    def __iter__(self) -> Iterator[Space]:
        return iter(self.spaces)

    def __len__(self) -> int:
        return len(self.spaces)

    def __getitem__(self, name: str) -> Space:
        return self.by_name[name]

    @cached_property
    def by_name(self) -> dict[str, Space]:
        return {s.name: s for s in self.spaces}

    @cached_property
    def axes(self) -> dict[str, dict[int, list[tuple[Space, AxisBinding]]]]:
        """Parameter → axis → the spaces bound there, each once; several where a parameter reads a concatenation."""
        found: dict[str, dict[int, dict[str, tuple[Space, AxisBinding]]]] = {}
        for space in self.spaces:
            for binding in space.bindings:
                axis = found.setdefault(binding.parameter, {}).setdefault(binding.axis, {})
                if space.name not in axis or binding.role != "reads":
                    axis[space.name] = space, binding
        return {p: {a: list(bound.values()) for a, bound in axes.items()} for p, axes in found.items()}

    @cached_property
    def averaged(self) -> tuple[str, ...]:
        """Parameters that can only be averaged over the models: they belong to no channels that can be kept apart.

        The last weights and biases are not among them, since averaging these is mixing the outputs.
        """
        used = self.used - self.constants
        return tuple(name for name in self.shapes if name in used and not self._kept_apart(name))

    @cached_property
    def unmatched(self) -> tuple[str, ...]:
        """Those of the averaged parameters whose channels cannot be matched with those of other models, either."""
        return tuple(n for n in self.averaged if not any(s.kind == "permutable" for s in self._written(n)))

    def why_averaged(self, name: str) -> tuple[str, ...]:
        """Why a parameter can only be averaged."""
        reasons = dict.fromkeys(r for s in self._written(name) if s.kind != "elastic" for r in s.reasons)
        scaled = "outputs that are scaled behind their layer"
        told = (scaled if r == OUTPUT and OUTPUT_GROUP not in reasons else r for r in reasons)
        return tuple(told) or ("belongs to no channels of a hidden layer",)

    def _written(self, name: str) -> list[Space]:
        """The spaces that a parameter writes or scales."""
        return [s for bound in self.axes.get(name, {}).values() for s, b in bound if b.role != "reads"]

    def _kept_apart(self, name: str) -> bool:
        """Whether every entry of a parameter can go into channels of its own, or only mixes outputs."""
        bound_to = self.axes.get(name, {})
        if name in self.tied:
            return all(s.kind == "elastic" or s.is_output for bound in bound_to.values() for s, _ in bound)
        if name in self.scalars:
            return all(s.kind == "elastic" for bound in bound_to.values() for s, _ in bound)
        for axis, bound in bound_to.items():
            if all(b.role == "reads" for _, b in bound):
                continue
            if all(s.is_output and b.role == "writes" and not s.names("scales") for s, b in bound):
                return True
            covered = sum(b.index.size for s, b in bound if s.kind == "elastic")
            return covered == self.shapes[name][axis]
        return False

    def bundles(self, names: Container[str]) -> list[tuple[str, ...]]:
        """The sets of spaces, among those named, whose blocks go together."""
        found: dict[str, list[str]] = {}
        for s in self.spaces:
            if s.bundle is not None and s.name in names:
                found.setdefault(s.bundle, []).append(s.name)
        return [tuple(spaces) for spaces in found.values()]

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """The elastic spaces, those whose widths change together side by side, in the order of computation."""
        found: dict[str, list[str]] = {}
        for s in self.spaces:
            if s.kind == "elastic":
                found.setdefault(s.name if s.group is None else s.group, []).append(s.name)
        return [tuple(members) for members in found.values()]

    def demote(self, names: Mapping[str, str], kind: Kind) -> Blueprint:
        """A copy in which the spaces named (name → reason) have a lesser kind; the widths that change with theirs are
        fixed, too."""
        spaces = [s.demote(kind, names[s.name]) if s.name in names else s for s in self.spaces]
        stiff = {s.group: s.name for s in spaces if s.name in names and s.group is not None}
        for k, s in enumerate(spaces):
            if s.kind == "elastic" and s.group in stiff:
                spaces[k] = s.demote("permutable", f"its width goes with that of {stiff[s.group]}")
        return replace(self, spaces=tuple(spaces))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = [
            (
                s.name,
                s.width,
                s.kind,
                shorten(s.names("writes")),
                shorten(s.names("reads")),
                shorten(s.names("scales")),
                "; ".join(s.reasons),
            )
            for s in self.spaces
        ]
        header = ("space", "width", "kind", "written by", "read by", "scaled by", "why not elastic")
        lines = [table(header, rows, align="<>")]
        if self.unknown:
            ops = ", ".join(f"{op} (×{n})" for op, n in self.unknown.items())
            lines.append(f"operations without a rule: {ops}")
        for group in self.groups:
            if len(group) > 1 and any(self[s].blocks is None for s in group):
                steps = shorten([f"{s} by {self[s].step}" for s in group])
                lines.append(f"change width together, as the code takes one for the other: {steps}")
        if self.averaged:
            lines.append(f"only averaged, whatever alpha: {shorten(self.averaged)}")
        if self.nonlinear_after:
            lines.append(f"the outputs pass {', '.join(self.nonlinear_after)}: models are mixed before, not after")
        lines.append(f"self-check: {self.checked}")
        return "\n".join(lines)
