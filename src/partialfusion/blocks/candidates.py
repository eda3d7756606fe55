"""Which layers of a fused model can be held as blocks, and why the others cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..blueprint import Space
from ..core.modules import canonical_names
from ..core.text import table
from ..kernels import Plan
from ..surgery.support import parameter_supports
from .layer import BlockLayer, Group, row_groups
from .layers import BLOCK_FORMS
from .whole import WholeTimes

FILLED = "it is not zero outside its blocks"


class Fused(Protocol):
    """What the block form needs from a fusion."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def layout(self) -> Mapping[str, Space]: ...


@dataclass(frozen=True)
class Verdict:
    """What became of one linear or convolution layer.

    Attributes:
        blocks: whether it is held as blocks.
        reason: why, or why not.
        dense: the number of entries of the dense weight.
        kept: the number of entries of its non-zero blocks, if it has zero blocks.
        dense_seconds, block_seconds: time of the two forms for one pass over the example inputs, if it was measured.
    """

    blocks: bool
    reason: str
    dense: int
    kept: int | None = None
    dense_seconds: float | None = None
    block_seconds: float | None = None


@dataclass(frozen=True, repr=False)
class Report(Mapping[str, Verdict]):
    """Path of a layer → what became of it, for all linear and convolution layers of a model. Prints as a table.

    Attributes:
        verdicts: what became of the layers.
        channels_last: whether convolutions are in channels-last layout.
        times: of the model as a whole, where mode="auto" measured them.
        form: which of the forms that were timed the model has.
    """

    verdicts: Mapping[str, Verdict]
    channels_last: bool = False
    times: WholeTimes | None = None
    form: str = "blocks"

    @property
    def slower(self) -> bool:
        """Whether the model was measured to be slower than its sources one by one."""
        times = self.times
        return times is not None and times.ensemble is not None and times.forms[self.form] > times.ensemble

    @property
    def comparison(self) -> str:
        """The times of the model as a whole in words; empty where they were not measured."""
        times = self.times
        if times is None:
            return ""
        found = f"one call, relative to {times.reference}: {times.forms[self.form]:.2f}"
        found += f", as a dense module {times.forms['dense']:.2f}"
        if times.ensemble is None:
            return found
        found += f", the models one by one {times.ensemble:.2f}"
        return f"{found}; SLOWER than the models one by one: take a smaller alpha or budget" if self.slower else found

    def __getitem__(self, layer: str) -> Verdict:
        return self.verdicts[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        header = ("layer", "form", "entries", "dense entries", "dense", "blocks", "why")
        rows = [
            (
                layer,
                "blocks" if c.blocks else "dense",
                f"{c.kept if c.blocks else c.dense:,}",
                f"{c.dense:,}",
                _time(c.dense_seconds),
                _time(c.block_seconds),
                c.reason,
            )
            for layer, c in self.items()
        ]
        notes = ["convolutions in channels-last layout"] if self.channels_last else []
        notes += [self.comparison] if self.times is not None else []
        return "\n".join([table(header, rows, align="<<>>>><"), *notes])


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3f} ms"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A linear or convolution layer of the model, its block form if it can have one, and the verdict so far."""

    layer: nn.Module
    block: BlockLayer | None
    verdict: Verdict


def find_candidates(result: Fused) -> dict[str, Candidate]:
    """Path → candidate, for all linear and convolution layers, in the order of the model."""
    holders: dict[int, set[nn.Module]] = {}
    for module in result.model.modules():
        for parameter in module.parameters(recurse=False):
            holders.setdefault(id(parameter), set()).add(module)
    canonical = canonical_names(result.model)
    found = {}
    for path, module in result.model.named_modules():
        if not isinstance(module, (nn.Linear, _ConvNd)):
            continue
        weight = module._parameters.get("weight")
        if weight is None:
            obstacle: str | None = "its weight is computed"
        else:
            obstacle = "its weight is shared" if len(holders[id(weight)]) > 1 else _obstacle(module, weight)
        if obstacle:
            found[path] = Candidate(module, None, Verdict(False, obstacle, module.weight.numel()))
        else:
            name = canonical[f"{path}.weight" if path else "weight"]
            found[path] = _candidate(module, _groups(name, module.weight, result))
    return found


def _candidate(layer: nn.Linear | _ConvNd, groups: Sequence[Group]) -> Candidate:
    """A layer that can be replaced, judged by the blocks of its weight."""
    weight = layer.weight.detach()
    size, kept = weight.numel(), sum(g.area for g in groups) * math.prod(weight.shape[2:])
    if kept == size:
        return Candidate(layer, None, Verdict(False, "it has no zero blocks", size))
    if any(len(g.cols) == 0 for g in groups):
        return Candidate(layer, None, Verdict(False, "some of its channels read nothing", size, kept))
    block = BLOCK_FORMS[type(layer)](layer, groups)
    if not weight.is_meta and not block.holds(weight):
        return Candidate(layer, None, Verdict(False, FILLED, size, kept))
    return Candidate(layer, block, Verdict(True, "it has zero blocks", size, kept))


def _obstacle(layer: nn.Module, weight: Tensor) -> str | None:
    """Why a layer must not be replaced by another module."""
    if type(layer) not in BLOCK_FORMS:
        return f"a {type(layer).__name__} has no block form"
    if isinstance(layer, _ConvNd) and layer.groups > 1:
        return "its groups are blocks already"
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if layer._parameters.keys() != {"weight", "bias"} or layer._buffers or layer._modules:
        return "it holds more than a weight and a bias"
    if any(value for name, value in vars(layer).items() if name.endswith("_hooks")):
        return "it has hooks"
    plain = bool, int, float, str, tuple, list, type(None)
    common = vars(nn.Module())
    custom = [name for name, value in vars(layer).items() if name not in common and not isinstance(value, plain)]
    return f"it has a custom attribute {custom[0]!r}" if custom else None


def _groups(name: str, weight: Tensor, result: Fused) -> list[Group]:
    """The blocks of a weight; all positions of a convolution kernel belong together."""
    support = parameter_supports({name: weight.shape}, result.layout, result.plan)[name]
    rows, cols = (
        np.ones((n, result.plan.models), bool) if table is None else table
        for n, table in zip(weight.shape[:2], support[:2], strict=True)
    )
    return row_groups(rows, cols)
