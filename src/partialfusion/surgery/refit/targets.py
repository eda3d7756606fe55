"""What the fused model should compute: the union's pre-activations, mapped by the write kernels."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ...blueprint import Blueprint, Space
from ...core.inputs import Inputs
from ...core.modules import named_tensors
from ...core.observer import LayerCall, Observer, Stop
from ...features import TracedModel
from ...kernels import Plan
from ...kernels.transform import AxisMap
from ..support import parameter_supports
from .steps import Step


@dataclass(frozen=True)
class Target:
    """What one call should compute.

    Attributes:
        rows: which samples and positions were drawn, None for all.
        values: (rows × outputs of the fused model).
    """

    rows: Tensor | None
    values: Tensor


Targets = dict[tuple[str, int], Target]  # by the step's key and the use


@dataclass(frozen=True)
class Union:
    """The sources side by side, and how their channels enter those of the fused model."""

    fused: nn.Module
    layout: Mapping[str, Space]
    models: Sequence[nn.Module]
    blueprints: Sequence[Blueprint]
    plan: Plan

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers of the fused model."""
        return named_tensors(self.fused)

    def channel_map(self, step: Step, m: int) -> AxisMap:
        """How the channels that a step computes in model m are written into the fused model's."""
        source, name, axis = TracedModel.of(self.models[m], self.blueprints[m]), step.key, step.layout.carries
        kernels = {space: reduction.pairs[m] for space, reduction in self.plan.items()}
        length = self.tensors[name].shape[axis]
        found = source.axis_map(name, axis, kernels, layout=self.layout, length=length, share=self.plan.mix[m])
        held, written = step.layout.sizes(self.tensors[name])
        return found if held == written else found.resized(held, written)

    def support(self, name: str, axis: int) -> np.ndarray:
        """(length × models) which models write the channels along an axis."""
        shape = tuple(self.tensors[name].shape)
        table = parameter_supports({name: shape}, self.layout, self.plan)[name][axis]
        return np.ones((shape[axis], self.plan.models), bool) if table is None else table

    def fits(self, step: Step) -> bool:
        """Whether one axis of the step's tensor is written and the others are only read: a tied weight is neither."""
        axes = self.blueprints[-1].axes.get(step.key, {})
        if step.name is None:
            return True
        written = [axis for axis, bound in axes.items() if any(b.role != "reads" for _, b in bound)]
        read = {
            b.axis for s in self.blueprints[-1] for b in s.bindings if b.parameter == step.name and b.role == "reads"
        }
        return written == [step.layout.carries] and step.layout.carries not in read


class TargetSource:
    """Runs the sources on a batch until they have computed the steps, and mixes what they computed.

    Args:
        union: the sources.
        steps: the steps whose targets are wanted.
        fractions: step's key → the fraction of its samples and positions to draw.
    """

    def __init__(self, union: Union, steps: Sequence[Step], fractions: Mapping[str, float]) -> None:
        self.fractions = fractions
        count = range(len(union.models))
        self.maps = [{s.key: union.channel_map(s, m) for s in steps} for m in count]
        self.observers = [_StepOutputs(model, steps, self._take(m)) for m, model in enumerate(union.models)]
        self.number, self.found = 0, Targets()

    def __call__(self, batch: Inputs, number: int) -> Targets:
        self.number, self.found = number, Targets()
        for observer in self.observers:
            observer.run(batch, number)
        return self.found

    def _take(self, m: int) -> Callable[[Step, int, Tensor], None]:
        def take(step: Step, use: int, output: Tensor) -> None:
            values = step.layout.rows(output)
            known = self.found.get((step.key, use))
            rows = self._draw(step.key, use, len(values)) if known is None else known.rows
            if rows is not None:
                values = values[rows.to(values.device)]
            values = values.to(torch.promote_types(values.dtype, torch.float32))
            part = self.maps[m][step.key](values, 1)
            total = part if known is None else known.values + part.to(known.values.device)
            self.found[step.key, use] = Target(rows, total)

        return take

    def _draw(self, key: str, use: int, count: int) -> Tensor | None:
        """Rows at random, the same for every model and every time."""
        wanted = int(np.ceil(self.fractions[key] * count))
        if wanted >= count:
            return None
        generator = torch.Generator().manual_seed(zlib.crc32(f"{key} {use} {self.number}".encode()))
        return torch.randperm(count, generator=generator)[:wanted].sort().values


class StepInputs(Observer):
    """Keeps the inputs of the steps' calls, and stops the network before the last of them."""

    def __init__(self, model: nn.Module, steps: Sequence[Step]) -> None:
        self.steps = {s.key: s for s in steps}
        super().__init__(model)

    def start(self) -> None:
        super().start()
        self.left = sum(s.uses for s in self.steps.values())
        self.seen: list[tuple[Step, LayerCall]] = []

    def before(self, call: LayerCall) -> None:
        if call.name not in self.steps:
            return
        self.left -= 1
        if self.left:
            # a copy, for the model may go on to write into its activations
            call = replace(call, x=call.x.clone())
        self.seen.append((self.steps[call.name], call))
        if not self.left:
            raise Stop


class _StepOutputs(Observer):
    """Hands over what the steps' calls compute, norms that follow included, and stops the network after the last."""

    def __init__(self, model: nn.Module, steps: Sequence[Step], take: Callable[[Step, int, Tensor], None]) -> None:
        self.steps, self.take = {s.key: s for s in steps}, take
        super().__init__(model)

    def start(self) -> None:
        super().start()
        self.left = sum(s.uses for s in self.steps.values())
        self.waiting: dict[int, tuple[Step, int, Tensor]] = {}

    def after(self, call: LayerCall, result: Tensor) -> None:
        step, use = self.steps.get(call.name), call.use
        if step is not None and step.name is not None and step.norm is not None:
            self.waiting[id(result)] = step, use, result
            return
        if step is None and id(call.x) in self.waiting:
            step, use, _ = self.waiting.pop(id(call.x))
        if step is not None:
            self.take(step, use, result)
            self.left -= 1
            if not self.left:
                raise Stop
