"""The one formula: W' = Σ_m write_m[out] · W_m · read_m[in], for every parameter of any blueprint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, Space, trace_labels
from ..core.modules import named_tensors
from ..core.text import shorten
from ..errors import TraceError, VerificationError
from ..features import Side
from ..kernels import Plan
from ..kernels.transform import axis_map
from .resize import resized


@dataclass(frozen=True)
class SurgeryResult:
    """A new model, and where the units of every space sit in it."""

    model: nn.Module
    layout: Mapping[str, Space]


class ResizeError(VerificationError):
    """Spaces that do not come back when the model is resized.

    `spaces` names them, or all that were resized where the model does not run at all; `exact` tells which.
    """

    def __init__(self, spaces: Sequence[str], why: str, *, exact: bool) -> None:
        super().__init__(f"the resized model is not the same network: {why}")
        self.spaces, self.why, self.exact = list(spaces), why, exact


def apply(
    models: Sequence[nn.Module], blueprints: Sequence[Blueprint], plan: Plan, inputs: tuple[Any, ...]
) -> SurgeryResult:
    """A new model, of the last model's class, with every parameter as the plan says.

    Args:
        models: the sources; they are only read.
        blueprints: one per model, with the same spaces.
        plan: a reduction for every space.
        inputs: example inputs, to trace the resized model.
    """
    blueprint = blueprints[-1]
    shapes = target_shapes(blueprint, plan)
    try:
        result = resized(models[-1], shapes)
        layout = layout_of(result, blueprint, plan, inputs)
    except ResizeError:
        result = resized(models[-1], shapes, follow=True)
        layout = layout_of(result, blueprint, plan, inputs)
    sides = [Side(b, named_tensors(m)) for b, m in zip(blueprints, models, strict=True)]
    with torch.no_grad():
        for name, target in named_tensors(result).items():
            if target.is_floating_point() and not target.is_meta:
                target.copy_(_parameter(name, sides, layout, plan, tuple(target.shape)))
    return SurgeryResult(result, layout)


def target_shapes(blueprint: Blueprint, plan: Plan) -> dict[str, tuple[int, ...]]:
    """Name → shape in the result."""
    shapes = {}
    for name, shape in blueprint.shapes.items():
        new = list(shape)
        for axis, bound in blueprint.axes.get(name, {}).items():
            new[axis] += sum((plan[s.name].width - s.width) * b.index.shape[1] for s, b in bound)
        shapes[name] = tuple(new)
    return shapes


def layout_of(model: nn.Module, blueprint: Blueprint, plan: Plan, inputs: tuple[Any, ...]) -> dict[str, Space]:
    """Where the units of every space sit in the resized model: traced again wherever a width changed."""
    changed = [s.name for s in blueprint if plan[s.name].width != s.width]
    if not changed:
        return dict(blueprint.by_name)
    try:
        traced = trace_labels(model, inputs)
    except TraceError as error:
        raise ResizeError(changed, str(error), exact=False) from error
    found = matching_spaces(blueprint, traced)
    wrong = [s.name for s in blueprint if s.name not in found or found[s.name].width != plan[s.name].width]
    if wrong:
        resized_wrong = [n for n in wrong if n in changed]
        why = f"{shorten(wrong)} did not come back"
        raise ResizeError(resized_wrong or changed, why, exact=bool(resized_wrong))
    return found


def matching_spaces(blueprint: Blueprint, other: Blueprint) -> dict[str, Space]:
    """Name in one blueprint → the space of another with the same bindings; spaces alike go by their order."""
    waiting: dict[object, list[Space]] = defaultdict(list)
    for space in reversed(other.spaces):
        waiting[space.key].append(space)
    return {s.name: waiting[s.key].pop() for s in blueprint if waiting[s.key]}


def _parameter(
    name: str, sides: Sequence[Side], layout: Mapping[str, Space], plan: Plan, shape: tuple[int, ...]
) -> Tensor:
    total: Tensor | None = None
    for m, side in enumerate(sides):
        tensor = side.number(name)
        shared_out = False
        for axis, bound in side.blueprint.axes.get(name, {}).items():
            writes = any(b.role != "reads" for _, b in bound) and not shared_out
            shared_out |= writes
            parts = []
            for space, binding in bound:
                pair = plan[space.name].pairs[m]
                new = layout[space.name].index(name, axis)
                parts.append((pair.writing() if writes else pair.reading(), binding.index, new))
            share = plan.mix[m] if writes else 1.0
            tensor = axis_map(parts, tensor.shape[axis], shape[axis], fixed_weight=share)(tensor, axis)
        if not shared_out:
            tensor = tensor * plan.mix[m]
        total = tensor if total is None else total.add_(tensor.to(total.device))
    assert total is not None
    return total
