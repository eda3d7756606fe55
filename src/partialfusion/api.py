"""The main flow: trace, align, reduce, operate, set the statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .align import Alignment, align_models
from .blueprint import Blueprint, as_inputs, named_tensors, run, trace_labels
from .checks import check_alpha, check_mix, check_models, check_tensors, conformed
from .data import Batches
from .errors import VerificationError
from .fusion import Fusion
from .kernels import Convention, Plan, Reduction, merge
from .recipe import Align, Alpha, Features, Method, NormRule, Recipe, resolve
from .surgery import ResizeError, analytic, apply, count, recalibrate, verify
from .surgery.verify import close


def trace(model: nn.Module, example_inputs: Any, *, check: bool = True, seed: int = 0) -> Blueprint:
    """The blueprint of a model: its channel spaces and what writes, reads and scales them. Prints as a table.

    Args:
        model: any module that torch.export can trace; its mode and weights stay as they are.
        example_inputs: a tensor, or a tuple of positional inputs.
        check: verify on numbers that channels can be moved and spaces widened, and demote those that cannot.
        seed: of the checks.
    """
    check_tensors(model, "the model")
    inputs = as_inputs(example_inputs)
    blueprint = trace_labels(model, inputs)
    return verify(model, inputs, blueprint, seed) if check else blueprint


def fuse(
    models: Sequence[nn.Module],
    example_inputs: Any,
    *,
    alpha: Alpha | None = None,
    mix: Sequence[float] | None = None,
    method: Method = "partial-ot",
    features: Features = "auto",
    align: Align = "fixed-point",
    data: Iterable[Any] | None = None,
    norm: NormRule = "auto",
    convention: Convention = "value",
    blueprint: Blueprint | None = None,
    check: bool = True,
    seed: int = 0,
) -> Fusion:
    """Fuse two or more trained networks of one architecture into one, anywhere between average and ensemble.

    Args:
        models: the networks. The result lives in the world of the last one: it is of its class, and at alpha=0 it has
            its widths. Widths of elastic spaces may differ between the models.
        example_inputs: a tensor, or a tuple of positional inputs.
        alpha: the isolated share of the channels, 0 (one model's size) to 1 (the exact ensemble); or a mapping from
            patterns of space names to numbers, of which the first that matches counts and spaces without a match are
            fused wholly. Default: 0.4 for "partial-ot", 0 for the methods that fuse every channel.
        mix: the share of each model, summing to one. Default: equal shares.
        method: "average" (channel i with channel i), "permutation" (Git Re-Basin's weight matching), "ot" (optimal
            transport), "partial-ot" (the most similar channels are fused, the rest stay isolated).
        features: compare channels by "weights", by "activations" on the data, or by "both". "auto" takes activations
            when there is data.
        align: "fixed-point" (coordinate descent over all spaces) or "greedy" (one pass).
        data: batches of inputs, or of (input, label) pairs; labels are not used.
        norm: statistics of batch norms: "recalibrate" on the data, the "analytic" data-free rule, or "auto".
        convention: "value" (a channel is the average of what is fused) or "mass" (the paper's form: it is the sum of
            the mass it receives, and with unequal widths channels that are matched in part are split).
        blueprint: a traced blueprint of the last model, to save tracing it again.
        check: verify the blueprint when it is traced here, and at alpha=1 that the result is the ensemble.
        seed: of the checks, the only thing that is random.
    """
    check_models(models)
    inputs = as_inputs(example_inputs)
    batches = Batches.of(data, len(inputs))
    recipe = resolve(
        method=method,
        features=features,
        align=align,
        norm=norm,
        convention=convention,
        alpha=alpha,
        mix=check_mix(mix, len(models)),
        seed=seed,
        has_data=batches is not None,
    )
    if blueprint is None:
        blueprint = trace(models[-1], inputs, check=check, seed=seed)
    wanted = check_alpha(recipe.alpha, blueprint, partial=recipe.partial)
    while True:
        blueprints = conformed(models, blueprint, inputs, equal=recipe.needs_equal_widths)
        alphas = {s.name: wanted[s.name] for s in blueprint if s.kind == "elastic"}
        alignments = align_models(models, blueprints, alphas, batches, recipe)
        plan = _plan(blueprint, alignments, alphas, recipe)
        try:
            operated = apply(models, blueprints, plan, inputs)
            break
        except ResizeError as error:
            blueprint = _without(blueprint, error, models[-1], inputs, seed)
    if recipe.norm == "recalibrate" and blueprint.norms and batches is not None:
        recalibrate(operated.model, blueprint, batches)
    else:
        analytic(operated, models, blueprints, plan)
    if check and recipe.norm == "analytic" and all(a == 1.0 for a in alphas.values()):
        _check_ensemble(operated.model, models, recipe.mix, inputs, blueprint)
    return Fusion(operated.model, plan, blueprint, operated.layout, recipe, count(models[-1], blueprint, plan))


def _without(
    blueprint: Blueprint, error: ResizeError, model: nn.Module, inputs: tuple[Any, ...], seed: int
) -> Blueprint:
    """The blueprint with the spaces demoted that do not follow their width: found by the check, else as reported."""
    verified = verify(model, inputs, blueprint, seed)
    if any(a.kind != b.kind for a, b in zip(blueprint, verified, strict=True)):
        return verified
    return blueprint.demote(dict.fromkeys(error.spaces, error.why), "permutable")


def _plan(blueprint: Blueprint, alignments: Sequence[Alignment], alphas: Mapping[str, float], recipe: Recipe) -> Plan:
    reductions: dict[str, Reduction] = {}
    for space in blueprint:
        couplings = [a.couplings[space.name] for a in alignments]
        if alphas.get(space.name) == 1.0:
            couplings = [c.isolated() for c in couplings]
        reductions[space.name] = merge(
            couplings,
            recipe.mix,
            recipe.convention,
            cost=sum(a.costs.get(space.name, 0.0) for a in alignments),
            sweeps=max(a.sweeps for a in alignments),
            converged=all(a.converged for a in alignments),
        )
    return Plan(reductions, recipe.mix, recipe.convention)


def _check_ensemble(
    result: nn.Module,
    models: Sequence[nn.Module],
    mix: Sequence[float],
    inputs: tuple[Any, ...],
    blueprint: Blueprint,
) -> None:
    """With nothing averaged and nothing after the last weights, alpha=1 is the mix of the outputs."""
    if blueprint.averaged or blueprint.bent or any(t.is_meta for t in named_tensors(result).values()):
        return
    outputs = [run(m, inputs) for m in models]
    if not all(isinstance(o, torch.Tensor) for o in outputs):
        return
    expected = sum(w * o.to(outputs[-1].device) for w, o in zip(mix, outputs, strict=True))
    if not close(run(result, inputs), expected):
        raise VerificationError(
            "the result at alpha=1 is not the mix of the models' outputs; please report the network that shows this"
        )
