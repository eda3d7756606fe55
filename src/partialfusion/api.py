"""The main flow: trace, choose a plan, operate, set the statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .align import couple_models
from .blueprint import Blueprint, as_inputs, named_tensors, run, trace_labels
from .budget import Budget, spender
from .checks import check_alpha, check_keep, check_mix, check_models, check_tensors, conformed
from .data import Batches
from .errors import DataError, OptionError, VerificationError
from .features import Site
from .fusion import Fusion
from .kernels import Convention, Plan
from .progress import Listener, listening
from .pruning import PruningMethod
from .pruning.union import prune_union
from .recipe import Align, Alpha, Features, Keep, Method, NormRule, PruningName, Recipe, resolve, ridge_of
from .surgery import RIDGE, ResizeError, analytic, apply, count, recalibrate, refit_model, verify
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
    budget: float | Budget | None = None,
    mix: Sequence[float] | None = None,
    method: Method = "partial-ot",
    features: Features = "auto",
    site: Site = "auto",
    align: Align = "fixed-point",
    data: Iterable[Any] | None = None,
    norm: NormRule = "auto",
    refit: bool | float = False,
    convention: Convention = "value",
    blueprint: Blueprint | None = None,
    check: bool = True,
    seed: int = 0,
    progress: bool | Listener | None = None,
) -> Fusion:
    """Fuse two or more trained networks of one architecture into one, anywhere between average and ensemble.

    Args:
        models: the networks. The result lives in the world of the last one: it is of its class, and at alpha=0 it has
            its widths. Widths of elastic spaces may differ between the models.
        example_inputs: a tensor, or a tuple of positional inputs.
        alpha: how many channels more than one model's: 0 (one model's size) to 1 (the exact ensemble); or a mapping
            from patterns of space names to numbers, of which the first that matches counts and spaces without a match
            have 0. For "partial-ot" it is the isolated share. Default: 0.4, and 0 for methods that fuse every channel.
        budget: instead of alpha, how large the result may be: effective parameters relative to the last model, such as
            1.3, or pf.Budget(params=…, flops=…, channels=…). Every space gets an alpha of its own: channels stay apart
            where that saves most of the matching cost per parameter.
        mix: the share of each model, summing to one. Default: equal shares.
        method: "average" (channel i with channel i), "permutation" (Git Re-Basin's weight matching), "ot" (optimal
            transport), "partial-ot" (the most similar channels are fused, the rest stay isolated); or generalised
            pruning of the ensemble: "cluster" (similar channels of any model become one), "zip" (the most correlated
            become pairs), "magnitude" (the least important are deleted), "magnitude+ot" (and merged into the others by
            optimal transport). Or an object with settings: pf.Cluster(…), pf.Zip(…), pf.Magnitude(…).
        features: compare channels by "weights", by "activations" on the data, or by "both". "auto" takes activations
            when there is data, and both for clustering.
        site: take activations "pre" the activation function or "post"; "auto" is pre, but in generalised pruning post
            for spaces with batch norm and for "zip".
        align: "fixed-point" (coordinate descent over all spaces) or "greedy" (one pass).
        data: batches of inputs, or of (input, label) pairs; labels are not used.
        norm: statistics of batch norms: "recalibrate" on the data, the "analytic" data-free rule, or "auto".
        refit: fit the result's layers to the models on the data afterwards, see `refit`; or the strength of its ridge.
        convention: "value" (a channel is the average of what is fused) or "mass" (the paper's form: it is the sum of
            the mass it receives, and with unequal widths channels that are matched in part are split).
        blueprint: a traced blueprint of the last model, to save tracing it again.
        check: verify the blueprint when it is traced here, and at alpha=1 that the result is the ensemble.
        seed: of the checks, and of the search in generalised pruning.
        progress: True or False, or a function of what is being done and the share done; None shows a bar on terminals.
    """
    check_models(models)
    if budget is not None and alpha is not None:
        raise OptionError("alpha and budget exclude each other: a budget finds an alpha for every space")
    inputs = as_inputs(example_inputs)
    batches = Batches.of(data, len(inputs))
    recipe = resolve(
        method=method,
        features=features,
        site=site,
        align=align,
        norm=norm,
        convention=convention,
        alpha=alpha,
        keep=None,
        mix=check_mix(mix, len(models)),
        seed=seed,
        refit=refit,
        has_data=batches is not None,
    )
    with listening(progress) as listener:
        bound = None if budget is None else Budget.of(budget)
        return _reduced(models, inputs, batches, recipe, blueprint, listener, bound, check=check, exact=norm == "auto")


def prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    keep: Keep | None = None,
    budget: float | Budget | None = None,
    method: PruningName | PruningMethod = "cluster",
    features: Features = "auto",
    site: Site = "auto",
    data: Iterable[Any] | None = None,
    norm: NormRule = "auto",
    refit: bool | float = False,
    convention: Convention = "value",
    blueprint: Blueprint | None = None,
    check: bool = True,
    seed: int = 0,
    progress: bool | Listener | None = None,
) -> Fusion:
    """Compress one trained network: its channels may be isolated, deleted or linearly combined.

    Args:
        model: the network; it stays as it is.
        example_inputs: a tensor, or a tuple of positional inputs.
        keep: the share of the channels that is left, 1 for all of them; or a mapping from patterns of space names to
            numbers, of which the first that matches counts and spaces without a match keep all. Default: 0.5.
        budget: instead of keep, how large the result may be: parameters relative to the model, such as 0.3, or
            pf.Budget(params=…, flops=…, channels=…). Channels go where they save most per parameter.
        method: "cluster" (similar channels become one), "zip" (the most correlated become pairs), "magnitude" (the
            least important are deleted), "magnitude+ot" (and merged into the others by optimal transport); or an
            object with settings: pf.Cluster(…), pf.Zip(…), pf.Magnitude(…).
        features: compare channels by "weights", by "activations" on the data, or by "both". "auto" takes both when
            there is data, and activations alone for methods other than clustering.
        site: take activations "pre" the activation function or "post"; "auto" is pre, but post for spaces with batch
            norm and for "zip".
        data: batches of inputs, or of (input, label) pairs; labels are not used.
        norm: statistics of batch norms: "recalibrate" on the data, the "analytic" data-free rule, or "auto".
        refit: fit the result's layers to the models on the data afterwards, see `refit`; or the strength of its ridge.
        convention: "value" (a channel is the average of what it combines) or "mass" (the paper's form: the sum).
        blueprint: a traced blueprint of the model, to save tracing it again.
        check: verify the blueprint when it is traced here, and at keep=1 that the result is the model.
        seed: of the search and the checks.
        progress: True or False, or a function of what is being done and the share done; None shows a bar on terminals.
    """
    check_tensors(model, "the model")
    if budget is not None and keep is not None:
        raise OptionError("keep and budget exclude each other: a budget finds what to keep of every space")
    inputs = as_inputs(example_inputs)
    batches = Batches.of(data, len(inputs))
    recipe = resolve(
        method=method,
        features=features,
        site=site,
        align="greedy",
        norm=norm,
        convention=convention,
        alpha=None,
        keep=0.5 if keep is None else keep,
        mix=(1.0,),
        seed=seed,
        refit=refit,
        has_data=batches is not None,
    )
    with listening(progress) as listener:
        bound = None if budget is None else Budget.of(budget)
        return _reduced([model], inputs, batches, recipe, blueprint, listener, bound, check=check, exact=norm == "auto")


def refit(
    result: Fusion, data: Iterable[Any], *, ridge: float = RIDGE, progress: bool | Listener | None = None
) -> Fusion:
    """Fit the layers of a fused or pruned model to what its sources compute, without labels.

    Layer by layer, by ridge least squares from the model's own inputs to the sources' pre-activations, held to the
    weights it has. Zero blocks stay zero, norm statistics are measured anew. A few hundred to some thousand inputs like
    those the models were trained on are enough.

    Args:
        result: what `fuse` or `prune` returned; it stays as it is.
        data: batches of inputs, or of (input, label) pairs; labels are not used.
        ridge: how strongly weights are held, relative to the mean square of what they read.
        progress: True or False, or a function of what is being done and the share done; None shows a bar on terminals.

    Returns:
        A new result with a model of its own.
    """
    batches = Batches.of(data, result.inputs)
    if batches is None:
        raise DataError("refit needs data: pass batches of inputs (labels are not used)")
    model = copy.deepcopy(result.model)
    with listening(progress) as listener:
        _refit(result, model, batches, ridge_of(ridge), listener)
    return replace(result, model=model, recipe=replace(result.recipe, refit=ridge))


def _reduced(
    models: Sequence[nn.Module],
    inputs: tuple[Any, ...],
    batches: Batches | None,
    recipe: Recipe,
    blueprint: Blueprint | None,
    listener: Listener,
    budget: Budget | None,
    *,
    check: bool,
    exact: bool,
) -> Fusion:
    """The union of the models reduced as the recipe says; `exact` leaves statistics alone where nothing is reduced."""
    if blueprint is None:
        listener("tracing", 0.0)
        blueprint = trace(models[-1], inputs, check=check, seed=recipe.seed)
    spending = None
    if budget is not None:
        listener("allocating the budget", 0.0)
        spending = spender(models, blueprint, inputs, batches, recipe, budget)
        recipe = spending.recipe(recipe)
    wanted = _shares(blueprint, recipe)
    while True:
        blueprints = conformed(models, blueprint, inputs, equal=recipe.needs_equal_widths)
        shares = {s.name: wanted[s.name] for s in blueprint if s.kind == "elastic"}
        plan = _plan(models, blueprints, shares, batches, recipe, listener)
        if spending is not None and not spending.holds(plan):
            spending = spending.tighter(plan)
            recipe = spending.recipe(recipe)
            wanted = _shares(blueprint, recipe)
            continue
        try:
            operated = apply(models, blueprints, plan, inputs)
            break
        except ResizeError as error:
            blueprint = _without(blueprint, error, models[-1], inputs, recipe.seed)
    whole = all(share == 1.0 for share in shares.values())
    if recipe.norm == "recalibrate" and blueprint.norms and batches is not None and not (whole and exact):
        listener("measuring norm statistics", 1.0)
        recalibrate(operated.model, blueprint, batches)
    else:
        analytic(operated, models, blueprints, plan)
        if check and whole:
            _check_ensemble(operated.model, models, recipe.mix, inputs, blueprint)
    counted = count(operated, plan, models[-1])
    plan = replace(plan, layout=operated.layout)
    result = Fusion(operated.model, plan, tuple(blueprints), recipe, counted, tuple(models), len(inputs))
    if recipe.refit and batches is not None and not whole:
        _refit(result, operated.model, batches, recipe.refit, listener)
    return result


def _refit(result: Fusion, model: nn.Module, batches: Batches, ridge: float, listener: Listener) -> None:
    """Fit a model, of the result's shapes and numbers, in place."""

    def tell(layer: str, done: int, total: int) -> None:
        listener(f"refitting {layer}", done / total)

    listener("refitting", 0.0)
    refit_model(
        model, result.layout, result.sources, result.blueprints, result.plan, batches, ridge=ridge, on_progress=tell
    )


def _shares(blueprint: Blueprint, recipe: Recipe) -> dict[str, float]:
    """Elastic space → the number the user gave: the isolated share, or for one model the share that is kept."""
    if recipe.keep is not None:
        return check_keep(recipe.keep, blueprint)
    assert recipe.alpha is not None
    return check_alpha(recipe.alpha, blueprint, partial=recipe.partial)


def _plan(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    shares: Mapping[str, float],
    batches: Batches | None,
    recipe: Recipe,
    listener: Listener,
) -> Plan:
    if recipe.pruning is None:
        return couple_models(models, blueprints, shares, batches, recipe)
    targets = {}
    for space, share in shares.items():
        *others, last = (b[space].width for b in blueprints)
        kept = max(1, round(share * last))
        targets[space] = kept if recipe.keep is not None else last + sum(round(share * n) for n in others)
    return prune_union(models, blueprints, targets, batches, recipe, recipe.pruning, listener)


def _without(
    blueprint: Blueprint, error: ResizeError, model: nn.Module, inputs: tuple[Any, ...], seed: int
) -> Blueprint:
    """The blueprint with the spaces demoted that do not follow their width: found by the check, else as reported."""
    verified = verify(model, inputs, blueprint, seed)
    if any(a.kind != b.kind for a, b in zip(blueprint, verified, strict=True)):
        return verified
    return blueprint.demote(dict.fromkeys(error.spaces, error.why), "permutable")


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
