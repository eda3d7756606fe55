"""Refit without labels: layer by layer, from the fused network's own inputs to the union's pre-activations."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...blueprint import Blueprint, Space
from ...core.inputs import Inputs
from ...core.modules import at_rest, named_tensors
from ...core.observer import LayerCall, norm_modules
from ...core.text import shorten
from ...errors import DataError, OptionError
from ...kernels import Plan
from ...nn import ViewNorm
from ..support import filled, parameter_supports
from .fit import Block, blocks, fit, scale_of, write
from .normal_equations import NormalEquations, TooLargeError
from .schedule import Data, Source, with_targets
from .steps import LayerCalls, Step, common_steps
from .targets import StepInputs, Target, Union
from .unfold import geometry, grouped, inputs

log = logging.getLogger(__name__)

RIDGE = 0.01


def refit_model(
    model: nn.Module,
    layout: Mapping[str, Space],
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    plan: Plan,
    batches: Iterable[Inputs],
    *,
    ridge: float = RIDGE,
    zeros: Literal["free", "kept"] = "kept",
    on_progress: Callable[[str, int, int], None] | None = None,
) -> tuple[str, ...]:
    """Fit the layers of a fused model, in the order in which it computes them, to what its sources compute.

    A layer's targets are the pre-activations of the sources on the same batch, mapped by the write kernels: the mix of
    what was fused, and a channel that was left alone as it is. Where a batch norm directly follows, the targets are
    the normalised values, and weight and norm are fitted as one map. The inputs are those of the fused model with
    the layers below already fitted. Norms that follow something else (a sum) get a scale and a shift per channel in the
    same way. All norms get fresh statistics.

    Args:
        model: the fused model; written in place.
        layout: where the units of every space sit in it.
        models: the sources; they are only read.
        blueprints: one per source.
        plan: the plan that made the model.
        batches: inputs; read several times.
        ridge: how strongly weights are held to the merged ones, relative to the mean diagonal of the normal matrix.
        zeros: whether a row may use all columns ("free"), or only those that its zero blocks leave it ("kept").
        on_progress: called with a layer's name, the number of layers done and the number of all.

    Returns:
        The weights that could not be fitted.
    """
    if not (math.isfinite(ridge) and ridge > 0):
        raise OptionError(f"ridge={ridge!r} must be a number above 0")
    data = Data(batches)
    union = Union(model, layout, models, blueprints, plan)
    if zeros == "kept":
        _check_zeros(union)
    observed = [LayerCalls(m, data.first) for m in (*models, model)]
    steps = [s for s in common_steps(observed) if union.fits(s)]
    left = _what_stays(steps, observed[-1], blueprints[-1])
    done = 0
    for group, targets in with_targets(union, steps, data):
        equations = _equations(union, group, targets, data)
        for step in group:
            _solve(union, step, equations[step.key], ridge, zeros)
            done += 1
            if on_progress is not None:
                on_progress(step.key, done, len(steps))
    return left


def _what_stays(steps: Sequence[Step], observed: LayerCalls, blueprint: Blueprint) -> tuple[str, ...]:
    """The weights that stay as merged, which are logged, and so are the norms whose statistics stay; tables have no
    inputs."""
    refitted = {s.name for s in steps}
    bindings = (b for space in blueprint for b in space.bindings)
    weights = [b.parameter for b in bindings if b.role == "writes" and b.dim is not None]
    weights += [c.name for c in observed.calls if c.kind == "weight"] + observed.unfit
    tables = {n for n in observed.looked_up if not observed.touched[n]}
    views = {f"{path}." for path, module in observed.model.named_modules() if isinstance(module, ViewNorm)}
    left = [n for n in dict.fromkeys(weights) if n not in refitted and n not in tables]
    left = [n for n in left if not any(n.startswith(path) for path in views)]
    if left:
        log.warning(
            "%s not refitted: the models use them in several ways, or in a way that cannot be observed", shorten(left)
        )
    fresh = {s.norm for s in steps}
    unmeasured = [n.var for n in blueprint.norms if n.var not in fresh]
    if unmeasured:
        log.warning("%s not measured again: no norm module of PyTorch uses them in one way only", shorten(unmeasured))
    return tuple(left)


def _equations(union: Union, steps: Sequence[Step], targets: Source, data: Data) -> dict[str, NormalEquations | None]:
    """One pass over the data: the normal equations of every step, None where they are too large."""
    found: dict[str, NormalEquations | None] = {s.key: NormalEquations(intercept=s.intercept) for s in steps}
    observer = StepInputs(union.fused, steps)
    with at_rest(*union.models, union.fused):
        for number, batch in enumerate(data):
            wanted = targets(batch, number)
            observer.run(batch, number)
            for step, call in observer.seen:
                equations = found[step.key]
                try:
                    if equations is not None:
                        _add(equations, call, observer, wanted[step.key, call.use])
                except TooLargeError as error:
                    log.warning("%s not refitted: %s are too many to solve for", step.key, error)
                    found[step.key] = None
    return found


def _add(equations: NormalEquations, call: LayerCall, observer: StepInputs, target: Target) -> None:
    found = geometry(call, observer)
    assert found is not None, f"{call.name} was a step, so its calls can be fitted"
    layout, window = found
    start = 0
    for x in inputs(layout, window, call.x, target.rows):
        t = target.values[start : start + x.shape[1]].to(x.device)
        equations.add(x, grouped(t, layout.groups))
        start += x.shape[1]


def _solve(union: Union, step: Step, equations: NormalEquations | None, ridge: float, zeros: str) -> None:
    """Fit a step and write the result into the fused model."""
    if equations is None:
        return
    system = equations.system()
    if not system.finite:
        raise DataError(f"what {step.key} reads or should compute on this data is not finite: check the data for NaN")
    tensors = named_tensors(union.fused)
    norm = None if step.norm is None else norm_modules(union.fused)[step.norm]
    if step.name is None:
        merged = torch.ones_like(system.cross)
        whole = torch.zeros(1, dtype=torch.long, device=merged.device)
        parts = [(whole, whole)]
    else:
        merged = step.layout.matrix(tensors[step.name].detach().to(system.cross))
        parts = _blocks(union, step, merged, zeros)
    scale = None if norm is None else scale_of(norm).to(merged.device).view(merged.shape[:2])
    found = fit(system, merged, parts, ridge, intercept=step.intercept, scale=scale)
    with torch.no_grad():
        write(step, system, merged, found, tensors, norm)


def _check_zeros(union: Union) -> None:
    """Zero blocks that hold numbers cannot be kept at zero."""
    parameters = dict(union.fused.named_parameters())
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    full = filled(parameters, parameter_supports(shapes, union.layout, union.plan))
    if full:
        raise OptionError(
            f"zeros='kept': the zero blocks of {shorten(full)} hold numbers already, from an earlier refit or from "
            "training; refit a result whose zero blocks are zero, or use zeros='free'"
        )


def _blocks(union: Union, step: Step, merged: Tensor, zeros: str) -> list[Block]:
    """The rows and columns between which weights are fitted; within a group of a convolution, all."""
    groups, rows, columns = merged.shape
    if groups > 1 or zeros == "free":
        return [(torch.arange(rows, device=merged.device), torch.arange(columns, device=merged.device))]
    reads = union.support(step.key, 1 - step.layout.write)
    places = columns // len(reads)
    return blocks(union.support(step.key, step.layout.write), np.tile(reads, (places, 1)), merged.device)
