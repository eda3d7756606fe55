"""The main flow: trace, align, reduce, operate, set the statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from .align import Alignment, Problem, fixed_point, greedy, separate
from .blueprint import Blueprint, as_inputs, named_tensors, run, trace_labels
from .checks import check_alpha, check_mix, check_models, check_tensors, conformed
from .data import Batches
from .errors import DataError, OptionError, VerificationError
from .features import Side, WeightCosts, activation_costs
from .fusion import Fusion, Recipe
from .kernels import Convention, Coupling, Plan, Reduction, merge
from .matching import couple, fused_count
from .surgery import ResizeError, analytic, apply, count, recalibrate, verify
from .surgery.verify import close

Method = Literal["average", "permutation", "ot", "partial-ot"]
Features = Literal["auto", "weights", "activations", "both"]
Align = Literal["fixed-point", "greedy"]
NormRule = Literal["auto", "recalibrate", "analytic"]
Alpha = float | Mapping[str, float]

METHODS = ("average", "permutation", "ot", "partial-ot")
DEFAULT_ALPHA = 0.4


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
    mix = check_mix(mix, len(models))
    batches = Batches.of(data, len(inputs))
    features = _choose(
        features, ("auto", "weights", "activations", "both"), "features", batches, "activations", "weights"
    )
    norm = _choose(norm, ("auto", "recalibrate", "analytic"), "norm", batches, "recalibrate", "analytic")
    _known(method, METHODS, "method")
    _known(align, ("fixed-point", "greedy"), "align")
    _known(convention, ("value", "mass"), "convention")
    if alpha is None:
        alpha = DEFAULT_ALPHA if method == "partial-ot" else 0.0
    if blueprint is None:
        blueprint = trace(models[-1], inputs, check=check, seed=seed)
    wanted = check_alpha(alpha, blueprint, partial=method == "partial-ot")
    while True:
        blueprints = conformed(models, blueprint, inputs, equal=method in ("average", "permutation"))
        alphas = {s.name: wanted[s.name] for s in blueprint if s.kind == "elastic"}
        alignments = _align(models, blueprints, alphas, batches, method, features, align, convention)
        plan = _plan(blueprint, alignments, alphas, mix, convention)
        try:
            operated = apply(models, blueprints, plan, inputs)
            break
        except ResizeError as error:
            blueprint = _without(blueprint, error, models[-1], inputs, seed)
    if norm == "recalibrate" and blueprint.norms and batches is not None:
        recalibrate(operated.model, blueprint, batches)
    else:
        analytic(operated, models, blueprints, plan)
    if norm != "recalibrate" and check and all(a == 1.0 for a in alphas.values()):
        _check_ensemble(operated.model, models, mix, inputs, blueprint)
    recipe = Recipe(method, features, align, norm, convention, alpha, tuple(mix), seed)
    return Fusion(operated.model, plan, blueprint, operated.layout, recipe, count(models[-1], blueprint, plan))


def _without(
    blueprint: Blueprint, error: ResizeError, model: nn.Module, inputs: tuple[Any, ...], seed: int
) -> Blueprint:
    """The blueprint with the spaces demoted that do not follow their width: found by the check, else as reported."""
    verified = verify(model, inputs, blueprint, seed)
    if any(a.kind != b.kind for a, b in zip(blueprint, verified, strict=True)):
        return verified
    return blueprint.demote(dict.fromkeys(error.spaces, error.why), "permutable")


def _choose(
    value: Any, known: Sequence[str], option: str, batches: Batches | None, with_data: str, without: str
) -> Any:
    _known(value, known, option)
    if value == "auto":
        return with_data if batches is not None else without
    if value in (with_data, "both") and batches is None:
        raise DataError(f"{option}={value!r} needs data: pass data=… (batches of inputs), or {option}={without!r}")
    return value


def _known(value: object, known: Sequence[str], option: str) -> None:
    if value not in known:
        raise OptionError(f"{option}={value!r} is not known: choose one of {', '.join(known)}")


def _align(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    alphas: Mapping[str, float],
    batches: Batches | None,
    method: str,
    features: str,
    align: str,
    convention: Convention,
) -> list[Alignment]:
    """Every model but the last, aligned with the last."""
    last = blueprints[-1]
    free = {s.name: alphas.get(s.name, 0.0) for s in last if s.kind != "rigid"}
    widths = [{s.name: (b[s.name].width, s.width) for s in last} for b in blueprints[:-1]]
    if method == "average" or all(a == 1.0 for a in free.values()):
        return [Alignment(_in_order(w)) for w in widths]
    if any(t.is_meta for m in models for t in named_tensors(m).values()):
        raise OptionError("the models have no numbers (meta device): only alpha=1 and method='average' need none")
    measured: list[dict[str, Any]] = [{} for _ in models[:-1]]
    if features != "weights":
        measured = activation_costs(models, blueprints, batches or (), list(free))
    sides = [Side(b, named_tensors(m)) for b, m in zip(blueprints, models, strict=True)]
    return [
        _align_pair(sides[k], sides[-1], free, widths[k], measured[k], method, features, align, convention)
        for k in range(len(models) - 1)
    ]


def _align_pair(
    ours: Side,
    theirs: Side,
    free: Mapping[str, float],
    widths: Mapping[str, tuple[int, int]],
    measured: Mapping[str, Any],
    method: str,
    features: str,
    align: str,
    convention: Convention,
) -> Alignment:
    bare = Problem(
        None,
        {},
        free,
        widths,
        split=convention == "mass",
        blocks={s.name: s.blocks for s in theirs.blueprint if s.blocks is not None and s.name in free},
        bundles=theirs.blueprint.bundles(free),
    )
    found = separate(replace(bare, fixed_costs=measured))
    unseen = {s: a for s, a in free.items() if s not in found.costs}
    if features == "activations" and not unseen:
        return found

    def problem(alphas: Mapping[str, float]) -> Problem:
        share = {
            s: fused_count(m, replace(bare, alphas=alphas).matched_alpha(s)) / m if s in alphas else 1.0
            for s, (_, m) in widths.items()
        }
        share = {s: max(v, 1 / widths[s][1]) for s, v in share.items()}
        rebasin = method == "permutation"
        weights = WeightCosts(ours, theirs, share, convention=convention, normalise=not rebasin, vectors=rebasin)
        scaled = {s: c / (widths[s][1] * share[s]) for s, c in measured.items()}
        return replace(bare, alphas=alphas, weights=weights, fixed_costs=scaled)

    if features == "activations":
        rest = fixed_point(replace(problem(free), alphas=unseen, fixed_costs={}), known=found.couplings)
        return replace(rest, costs={**found.costs, **rest.costs})
    wanted = problem(free)
    if align == "greedy":
        return greedy(wanted)
    full = problem(wanted.at_full_fusion()) if wanted.is_partial() else None
    return fixed_point(wanted, full=full)


def _in_order(widths: Mapping[str, tuple[int, int]]) -> dict[str, Coupling]:
    """Channel i with channel i; where widths differ, nothing is fused."""
    return {
        s: Coupling.identity(n) if n == m else couple(np.zeros((n, m)), 0.0).isolated() for s, (n, m) in widths.items()
    }


def _plan(
    blueprint: Blueprint,
    alignments: Sequence[Alignment],
    alphas: Mapping[str, float],
    mix: Sequence[float],
    convention: Convention,
) -> Plan:
    reductions: dict[str, Reduction] = {}
    for space in blueprint:
        couplings = [a.couplings[space.name] for a in alignments]
        if alphas.get(space.name) == 1.0:
            couplings = [c.isolated() for c in couplings]
        reductions[space.name] = merge(
            couplings,
            mix,
            convention,
            cost=sum(a.costs.get(space.name, 0.0) for a in alignments),
            sweeps=max(a.sweeps for a in alignments),
            converged=all(a.converged for a in alignments),
        )
    return Plan(reductions, tuple(mix), convention)


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
