"""The one formula: W' = Σ_m write_m[out] · W_m · read_m[in], for every parameter of any blueprint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, RuleError, Space, trace_labels
from ..core.modules import named_tensors
from ..core.text import shorten
from ..errors import TraceError, VerificationError
from ..features import TracedModel
from ..kernels import Plan
from .resize import resized


@dataclass(frozen=True, repr=False)
class AppliedPlan(Plan):
    """A plan together with where the channels of every space sit in the model that it made.

    Attributes:
        layout: space → its bindings in the new model.
    """

    layout: Mapping[str, Space] = field(kw_only=True)

    @classmethod
    def of(cls, plan: Plan, layout: Mapping[str, Space]) -> AppliedPlan:
        return cls(plan.reductions, plan.mix, plan.convention, layout=layout)


@dataclass(frozen=True)
class SurgeryResult:
    """A new model, and the plan that made it."""

    model: nn.Module
    plan: AppliedPlan

    @property
    def layout(self) -> Mapping[str, Space]:
        """Where the channels of every space sit in the new model."""
        return self.plan.layout


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
    applied = AppliedPlan.of(plan, layout)
    sources = [TracedModel.of(m, b) for m, b in zip(models, blueprints, strict=True)]
    with torch.no_grad():
        for name, target in named_tensors(result).items():
            if target.is_floating_point() and not target.is_meta:
                target.copy_(_parameter(name, sources, applied, tuple(target.shape)))
    return SurgeryResult(result, applied)


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
    except RuleError:
        raise
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
    """Name in one blueprint → the space of another with the same bindings, in the same order."""
    waiting: dict[object, list[Space]] = defaultdict(list)
    for space in reversed(other.spaces):
        waiting[space.key].append(space)
    return {s.name: waiting[s.key].pop() for s in blueprint if waiting[s.key]}


def _parameter(name: str, sources: Sequence[TracedModel], plan: AppliedPlan, shape: tuple[int, ...]) -> Tensor:
    """The sum of what every model contributes to a parameter."""
    total: Tensor | None = None
    for m, source in enumerate(sources):
        kernels = {space: reduction.pairs[m] for space, reduction in plan.items()}
        term = source.mapped(name, kernels, layout=plan.layout, shape=shape, share=plan.mix[m])
        total = term if total is None else total.add_(term.to(total.device))
    assert total is not None
    return total
