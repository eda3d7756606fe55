"""What can be refitted, and in which order: found by observing the networks once."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...core.inputs import Inputs
from ...core.modules import at_rest
from ...core.observer import LayerCall, Observer
from .unfold import Layout, geometry


@dataclass(frozen=True)
class Step:
    """A weight to refit, with the norm that directly follows, or a norm that follows something else.

    Attributes:
        name: name of the weight; None for a norm by itself.
        norm: the name of the norm's variance, if there is one.
        bias: the name of the weight's bias, if any.
        uses: how often the network uses it.
        layout: how the weight is stored.
        source: a number for the input; steps of one number read the same tensor.
        rows: samples and positions of one use on the first batch.
    """

    name: str | None
    norm: str | None
    bias: str | None
    uses: int
    layout: Layout
    source: int
    rows: int

    @property
    def key(self) -> str:
        """The tensor whose calls are observed."""
        return str(self.norm if self.name is None else self.name)

    @property
    def intercept(self) -> bool:
        """Whether something can take a constant."""
        return self.norm is not None or self.bias is not None

    def like(self, other: Step) -> bool:
        """Whether this is the same step in a network of other widths."""
        mine, theirs = ((s.name, s.norm, s.bias, s.uses, s.layout.write, s.layout.channels) for s in (self, other))
        return mine == theirs


class LayerCalls(Observer):
    """Every use of every weight and norm of a network, in order, and who reads the results."""

    def __init__(self, model: nn.Module, batch: Inputs) -> None:
        super().__init__(model)
        self.calls: list[LayerCall] = []
        self.layouts: list[Layout] = []
        self.biases: list[str | None] = []
        self.sources: list[int] = []
        self.rows: list[int] = []
        self.touched: Counter[str] = Counter()
        self.looked_up: Counter[str] = Counter()
        self.unfit: list[str] = []  # weights in use that no least squares can fit
        self.readers: dict[int, list[str]] = defaultdict(list)
        self._made: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._read: dict[tuple[int, int], tuple[weakref.ref[Tensor], int]] = {}
        with at_rest(model):
            outputs = self.run(batch, 0)
        self._reads(batch.results(outputs), "")

    def before(self, call: LayerCall) -> None:
        found = geometry(call, self)
        if found is None:
            self.unfit += [call.name] if call.kind == "weight" else []
            self.other(call.operation, call.tensors, (call.x, call.arguments))
            return
        self.touched.update(call.tensors)
        self._reads([call.x], call.name if call.kind == "norm" else "")
        self.sources.append(self._source(call.x))
        self.calls.append(replace(call, x=call.x.new_empty(0)))
        self.layouts.append(found[0])
        self.biases.append(self.bias(call) if call.kind == "weight" else None)

    def after(self, call: LayerCall, result: Tensor) -> None:
        if len(self.rows) < len(self.calls):  # one that can be refitted
            self.rows.append(result.numel() // max(1, result.shape[self.layouts[-1].channels]))
            self._made[id(result)] = weakref.ref(result), len(self.calls) - 1

    def other(self, operation: str, names: Sequence[str], values: Any) -> None:
        (self.looked_up if operation == "embedding" else self.touched).update(names)
        self._reads(tree_leaves(values), "")

    def _reads(self, values: Sequence[Any], norm: str) -> None:
        """Note who reads the results of earlier calls: a norm, or something else."""
        for value in values:
            reference, number = self._made.get(id(value), (None, -1))
            if reference is not None and reference() is value:
                self.readers[number].append(norm)

    def _source(self, x: Tensor) -> int:
        key = id(x), -1 if x.is_inference() else x._version
        reference, number = self._read.get(key, (None, -1))
        if reference is None or reference() is not x:
            number = len(self.calls)
            self._read[key] = weakref.ref(x), number
        return number

    def steps(self) -> dict[str, Step]:
        """Name of the weight, or of the norm's variance → step, in the order of first use."""
        calls: dict[str, list[int]] = defaultdict(list)
        for number, call in enumerate(self.calls):
            calls[call.name].append(number)
        norms = {name: self._follower(numbers, calls) for name, numbers in calls.items()}
        found = {}
        for name, numbers in calls.items():
            if name in norms.values() or not self._alone(numbers):
                continue
            n = numbers[0]
            weight, norm = (name, norms[name]) if self.calls[n].kind == "weight" else (None, name)
            layout, bias = self.layouts[n], self.biases[n]
            found[name] = Step(weight, norm, bias, len(numbers), layout, self.sources[n], self.rows[n])
        return found

    def _alone(self, numbers: Sequence[int]) -> bool:
        """Whether the tensors of these calls take part in nothing else, and in the same way in each of them."""
        tensors, layout = self.calls[numbers[0]].tensors, self.layouts[numbers[0]]
        same = all((self.layouts[n], self.calls[n].tensors) == (layout, tensors) for n in numbers)
        used = self.touched + self.looked_up
        return same and all(used[t] == len(numbers) for t in tensors)

    def _follower(self, numbers: Sequence[int], calls: dict[str, list[int]]) -> str | None:
        """The norm that alone reads all results of these calls, and nothing else, along the channels they write."""
        first = self.calls[numbers[0]]
        readers = {tuple(self.readers[n]) for n in numbers}
        norm = readers.pop() if len(readers) == 1 else ()
        if first.kind == "norm" or len(norm) != 1 or not norm[0] or len(calls[norm[0]]) != len(numbers):
            return None
        same_channels = self.layouts[calls[norm[0]][0]].channels == self.layouts[numbers[0]].channels
        return norm[0] if same_channels and self._alone(numbers) and self._alone(calls[norm[0]]) else None


def common_steps(observed: Sequence[LayerCalls]) -> list[Step]:
    """The steps that all networks have, as the last one has them, in its order."""
    found = [calls.steps() for calls in observed]
    return [s for name, s in found[-1].items() if all(name in f and s.like(f[name]) for f in found[:-1])]
