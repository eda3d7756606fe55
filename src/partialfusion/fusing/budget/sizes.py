"""Sizes of a result, predicted from the supports of its spaces: no surgery is needed to count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from ...blueprint import Blueprint
from ...blueprint.spaces import owner
from ...core.inputs import Inputs, run
from ...core.operations import counting
from ...features import dense_bindings


class Support(Counter[int]):
    """Set of models, as bits → channels that just these models write.

    Attributes:
        dense: weights read all of these channels for every model, whoever writes them.
    """

    dense: bool = False

    @classmethod
    def of(cls, channels: Mapping[int, int], *, dense: bool) -> Support:
        found = cls(channels)
        found.dense = dense
        return found


NAMES = ("dense", "params", "flops", "latency", "channels")


@dataclass(frozen=True)
class Sizes:
    """What a result costs, or may cost.

    Attributes:
        dense: parameters of the module.
        params: effective parameters, those outside the zero blocks.
        flops: operations of the module in one call with the example inputs.
        latency: time of such a call, relative to the last model; 0 where nobody asked.
        channels: channels of elastic spaces.
    """

    dense: float = math.inf
    params: float = math.inf
    flops: float = math.inf
    latency: float = math.inf
    channels: float = math.inf

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(**{name: getattr(self, name) + getattr(other, name) for name in NAMES})

    def __sub__(self, other: Sizes) -> Sizes:
        return Sizes(**{name: getattr(self, name) - getattr(other, name) for name in NAMES})

    def fits(self, limits: Sizes) -> bool:
        return all(getattr(self, name) <= getattr(limits, name) for name in NAMES)

    def used(self, limits: Sizes) -> float:
        """The fraction of the tightest bound."""
        return max(getattr(self, name) / getattr(limits, name) for name in NAMES)

    def over(self, factor: float) -> Sizes:
        """All of them divided."""
        return Sizes(**{name: getattr(self, name) / factor for name in NAMES})


@dataclass(frozen=True, eq=False)
class _Parameter:
    """How a parameter's size follows from the spaces on its axes.

    Attributes:
        axes: per axis, the spaces on it with their positions per channel and whether these may be read by a dense
            kernel; and the positions of no space.
        operations: floating-point operations per entry in one call.
    """

    axes: tuple[tuple[tuple[tuple[str, int, bool], ...], int], ...]
    operations: float

    def dense(self, supports: Mapping[str, Support]) -> int:
        """All entries."""
        return math.prod(free + sum(supports[s].total() * n for s, n, _ in spaces) for spaces, free in self.axes)

    def entries(self, supports: Mapping[str, Support], everyone: int) -> int:
        """Entries that some model writes: positions on all axes have a model in common."""
        blocks = {everyone: 1}  # plain dictionaries: this is asked for thousands of times
        for spaces, free in self.axes:
            along = {everyone: free} if free else {}
            for space, positions, reads in spaces:
                support = supports[space]
                for models, channels in support.items():
                    key = everyone if reads and support.dense else models
                    along[key] = along.get(key, 0) + channels * positions
            joined: dict[int, int] = {}
            for models, n in along.items():
                for others, size in blocks.items():
                    both = models & others
                    joined[both] = joined.get(both, 0) + n * size
            blocks = joined
        return sum(size for models, size in blocks.items() if models)


class Structure:
    """Counts a result of given supports.

    Args:
        model: the last model.
        blueprint: its blueprint.
        inputs: what it is called with, where operations are to be counted.
        models: how many are fused.

    Attributes:
        latency: predicts the time of a call from the other sizes, and is linear in them but for a constant.
    """

    def __init__(self, model: nn.Module, blueprint: Blueprint, inputs: Inputs, models: int) -> None:
        self.latency: Callable[[Sizes], float] = lambda _: 0.0
        self.everyone = (1 << models) - 1
        self.elastic = [s.name for s in blueprint if s.kind == "elastic"]
        self.rigid = {s.name: Support({self.everyone: s.width}) for s in blueprint}
        dense = {(s.name, b.parameter, b.axis) for s in blueprint for b in dense_bindings(s)}
        operations = _operations(model, inputs)
        self.parameters: list[_Parameter] = []
        self.touching: dict[str, list[_Parameter]] = {s.name: [] for s in blueprint}
        for name, tensor in model.named_parameters():
            bound_to = blueprint.axes.get(name, {})
            axes = []
            for axis, length in enumerate(tensor.shape):
                here = [(space.name, b) for space, b in bound_to.get(axis, ())]
                bound = tuple((s, b.index.shape[1], (s, name, axis) in dense) for s, b in here)
                axes.append((bound, length - sum(b.index.size for _, b in here)))
            per_entry = operations.get(name, 0.0) / max(tensor.numel(), 1)
            parameter = _Parameter(tuple(axes), per_entry)
            self.parameters.append(parameter)
            for space in dict.fromkeys(space.name for bound in bound_to.values() for space, _ in bound):
                self.touching[space].append(parameter)

    def sizes(self, supports: Mapping[str, Support]) -> Sizes:
        """The sizes of a result whose elastic spaces have these supports; all other spaces are those of one model."""
        return self._of(self.parameters, {**self.rigid, **supports}, self.elastic)

    def change(self, supports: Mapping[str, Support], new: Mapping[str, Support]) -> Sizes:
        """What other supports of some spaces add."""
        before, near = {**self.rigid, **supports}, list(dict.fromkeys(p for s in new for p in self.touching[s]))
        old, grown = self._of(near, before, list(new)), self._of(near, {**before, **new}, list(new))
        return grown - old

    def near(self, spaces: Sequence[str]) -> set[str]:
        """The spaces that share a parameter with some of these: what their supports add depends on these, too."""
        return {name for s in spaces for p in self.touching[s] for bound, _ in p.axes for name, *_ in bound}

    def _of(self, parameters: Sequence[_Parameter], supports: Mapping[str, Support], elastic: Sequence[str]) -> Sizes:
        params = sum(p.entries(supports, self.everyone) for p in parameters)
        dense = [p.dense(supports) for p in parameters]
        flops = sum(n * p.operations for n, p in zip(dense, parameters, strict=True))
        found = Sizes(sum(dense), params, flops, 0.0, sum(supports[s].total() for s in elastic))
        return replace(found, latency=self.latency(found))


def _operations(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Weight → floating-point operations in one call of the model; large weights of one module share its operations."""
    with counting(model) as counter:
        run(model, inputs)
    prefix = f"{type(model).__name__}."
    counted = {path.removeprefix(prefix): sum(kinds.values()) for path, kinds in counter.get_flop_counts().items()}
    large = {name: tensor.numel() for name, tensor in model.named_parameters() if tensor.dim() >= 2}
    held: Counter[str] = Counter()
    for name, size in large.items():
        held[owner(name)] += size
    return {name: counted.get(owner(name), 0) * size / held[owner(name)] for name, size in large.items()}
