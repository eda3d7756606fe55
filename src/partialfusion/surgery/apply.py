"""The one formula: W' = Σ_m write_m[out] · W_m · read_m[in], for every parameter of any blueprint."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, RuleError, Space, trace_labels
from ..blueprint.canonical import canonical
from ..core.blocks import Part
from ..core.inputs import Inputs, run
from ..core.modules import named_tensors
from ..core.text import shorten
from ..errors import TraceError, VerificationError
from ..features import TracedModel
from ..kernels import KernelPair, Plan
from .numbers import Candidates, Follows
from .resize import resized
from .views import install_views, share_out

log = logging.getLogger(__name__)

MOST_LAYOUTS = 32  # sizes of one blueprint whose layouts are remembered


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
    """A new model, the plan that made it, and the whole numbers in its modules that followed the new widths."""

    model: nn.Module
    plan: AppliedPlan
    follows: Follows = field(default_factory=dict)

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


def apply(models: Sequence[nn.Module], blueprints: Sequence[Blueprint], plan: Plan, inputs: Inputs) -> SurgeryResult:
    """A new model, of the last model's class, with every parameter as the plan says.

    Args:
        models: the sources; they are only read.
        blueprints: one per model, with the same spaces.
        plan: a reduction for every space.
        inputs: example inputs, to trace the resized model.
    """
    blueprint = blueprints[-1]
    resized_model = _resize(models[-1], blueprint, plan, inputs)
    result, layout = resized_model.model, resized_model.layout
    applied = AppliedPlan.of(plan, layout)
    sources = [TracedModel.of(m, b) for m, b in zip(models, blueprints, strict=True)]
    tensors = named_tensors(result)
    with torch.no_grad():
        for name, target in tensors.items():
            if is_made_of_all(name, target, blueprint) and not target.is_meta:
                target.copy_(parameter(name, sources, applied, tuple(target.shape)))
        share_out(tensors, blueprint, applied, layout)
    return SurgeryResult(install_views(result, blueprint, applied, layout), applied, resized_model.follows)


@dataclass(frozen=True)
class _Resized:
    """A copy of a model with new widths and no content, where its channels sit, and which numbers had to follow."""

    model: nn.Module
    layout: dict[str, Space]
    follows: Follows


# Blueprint → widths and inputs → where the channels of a model of these widths sit, and which numbers had to follow.
# Other shares or another matching at the same widths need no second trace.
_layouts: WeakKeyDictionary[Blueprint, dict[object, tuple[dict[str, Space], Follows]]] = WeakKeyDictionary()


def _resize(model: nn.Module, blueprint: Blueprint, plan: Plan, inputs: Inputs) -> _Resized:
    shapes = {n: shape for n, shape in target_shapes(blueprint, plan).items() if n not in blueprint.constants}
    if all(plan[s.name].width == s.width for s in blueprint):
        return _Resized(resized(model, shapes), dict(blueprint.by_name), {})
    candidates = Candidates(model, blueprint, plan, shapes)
    known = _layouts.setdefault(blueprint, {})
    key = tuple(plan[s.name].width for s in blueprint), inputs.shapes, inputs.output
    if key in known:
        layout, follows = known[key]
        return _Resized(resized(model, shapes, candidates.numbers(follows)), layout, follows)
    found = _traced_again(model, blueprint, plan, inputs, candidates, shapes)
    while len(known) >= MOST_LAYOUTS:
        del known[next(iter(known))]
    known[key] = found.layout, found.follows
    return found


def _traced_again(
    model: nn.Module,
    blueprint: Blueprint,
    plan: Plan,
    inputs: Inputs,
    candidates: Candidates,
    shapes: Mapping[str, tuple[int, ...]],
) -> _Resized:
    """The resized model, and where its own trace finds the channels.

    The numbers that are known to follow are tried first, then none, then those that a search finds.
    """

    def made(follows: Follows) -> _Resized:
        result = resized(model, shapes, candidates.numbers(follows))
        return _Resized(result, layout_of(result, blueprint, plan, inputs), follows)

    for follows in (blueprint.follows, {}) if blueprint.follows else ({},):
        try:
            return made(follows)
        except ResizeError as error:
            log.debug("with %s: %s", dict(follows), error)
            last = error
    trial = canonical(resized(model, shapes), blueprint.norm_layers)
    found = candidates.search(trial, lambda m: run(m, inputs))
    if found is None:
        raise last
    for follows in chain([found], candidates.heads(trial, lambda m: run(m, inputs), found)):
        try:
            return made(follows)
        except ResizeError as error:
            log.debug("with %s: %s", dict(follows), error)
            last = error
    raise last


def target_shapes(blueprint: Blueprint, plan: Plan) -> dict[str, tuple[int, ...]]:
    """Name → shape in the result."""
    shapes = {}
    for name, shape in blueprint.shapes.items():
        new = list(shape)
        if name in blueprint.scalars:
            bound = blueprint.axes[name][0]
            if any(plan[s.name].width != s.width for s, _ in bound):
                new = [sum(plan[s.name].width * b.index.shape[1] for s, b in bound), *[1] * blueprint.scalars[name]]
            shapes[name] = tuple(new)
            continue
        for axis, bound in blueprint.axes.get(name, {}).items():
            new[axis] += sum((plan[s.name].width - s.width) * b.index.shape[1] for s, b in bound)
        shapes[name] = tuple(new)
    return shapes


def layout_of(model: nn.Module, blueprint: Blueprint, plan: Plan, inputs: Inputs) -> dict[str, Space]:
    """Where the units of every space sit in the resized model: traced again wherever a width changed."""
    changed = [s.name for s in blueprint if plan[s.name].width != s.width]
    if not changed:
        return dict(blueprint.by_name)
    try:
        traced = trace_labels(model, inputs, blueprint.norm_layers)
    except RuleError:
        raise
    except TraceError as error:
        raise ResizeError(changed, str(error), exact=False) from error
    found = matching_spaces(blueprint, traced)
    wrong = [s.name for s in blueprint if s.name not in found or not _has_come_back(s, found[s.name], plan)]
    if wrong:
        resized_wrong = [n for n in wrong if n in changed]
        why = f"{shorten(wrong)} did not come back"
        raise ResizeError(resized_wrong or changed, why, exact=bool(resized_wrong))
    return found


def _has_come_back(space: Space, found: Space, plan: Plan) -> bool:
    """Whether a space has the width that it was given, in heads of the size that they had."""
    if found.width != plan[space.name].width:
        return False
    return space.heads * found.width == found.heads * space.width


def matching_spaces(blueprint: Blueprint, other: Blueprint) -> dict[str, Space]:
    """Name in one blueprint → the space of another with the same bindings, in the same order."""
    waiting: dict[object, list[Space]] = defaultdict(list)
    for space in reversed(other.spaces):
        waiting[space.key].append(space)
    return {s.name: waiting[s.key].pop() for s in blueprint if waiting[s.key]}


def is_made_of_all(name: str, target: Tensor, blueprint: Blueprint) -> bool:
    """Whether a tensor of the result is made of those of all models; any other is the last model's, or a view's."""
    return name in blueprint.shapes and name not in blueprint.constants and target.is_floating_point()


def parameter(
    name: str, sources: Sequence[TracedModel], plan: AppliedPlan, shape: tuple[int, ...], part: Part | None = None
) -> Tensor:
    """The sum of what every model contributes to a parameter, or to a part of it."""
    total: Tensor | None = None
    for m, source in enumerate(sources):
        kernels = {space: reduction.pairs[m] for space, reduction in plan.items()}
        if name in source.blueprint.scalars and shape == tuple(source.tensors[name].shape):
            term = source.number(name) * plan.mix[m]  # one number for all channels, as in the source
            total = term if total is None else total + term.to(total.device)
            continue
        shift = _shift(name, source, kernels)
        term = source.mapped(name, kernels, layout=plan.layout, shape=shape, share=plan.mix[m], shift=shift, part=part)
        total = term if total is None else total + term.to(total.device)
    assert total is not None
    return total.view(shape) if part is None else total


def _shift(name: str, source: TracedModel, kernels: Mapping[str, KernelPair]) -> Tensor | None:
    """What a bias or the mean of a norm takes of the constants in what is read, of the shape of the parameter."""
    total: Tensor | None = None
    for space, pair in kernels.items():
        for weight, read in pair.interpolation.maps.items() if pair.interpolation is not None else ():
            if read is None or read.shift is None or read.offset is None or read.shift.parameter != name:
                continue
            part = read.shift.sign * source.reading(weight, space, torch.from_numpy(read.offset))
            total = part if total is None else total + part
    return total
