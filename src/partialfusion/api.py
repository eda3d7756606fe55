"""What users call: trace, fuse, prune, refit."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from .blueprint import Blueprint
from .core.alone import alone
from .core.batches import Batches
from .core.compute import Device, computing_on
from .core.examples import inputs_and_batches
from .core.inputs import Inputs, Output
from .core.literals import (
    Align,
    Alpha,
    Basis,
    Convention,
    Features,
    Keep,
    Masses,
    NormRule,
    PruningName,
    Refit,
    RoundTo,
    Site,
    Zeros,
)
from .core.progress import ProgressCallback, reporting
from .core.scalars import check_flag, check_seed
from .errors import DataError, OptionError
from .fusing.budget import Budget
from .fusing.methods import PruningMethod
from .fusing.mix_search import best_mix
from .fusing.options import Method, check_masses_in_budget, resolve, ridge_of, zeros_of
from .fusing.pipeline import Pipeline
from .fusing.prepare import traced
from .fusing.refitting import refit_result
from .fusing.related import of_one_base
from .fusing.result import Fusion
from .fusing.scoring import Evaluate, Scorer
from .fusing.validation import check_mix, check_models, check_result, check_tensors
from .surgery import RIDGE, SurgeryResult, count


@alone
def trace(
    model: nn.Module,
    example_inputs: Any,
    *,
    output: Output | None = None,
    check: bool = True,
    seed: int = 0,
    progress: bool | ProgressCallback | None = None,
) -> Blueprint:
    """The blueprint of a model: its channel spaces and what writes, reads and scales them. Prints as a table.

    Args:
        model: any module that torch.export can trace; its mode and weights stay as they are.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs.
        output: which entry of the model's output is the result, by name or position. Default: "logits" where there is
            one, else what looks like it, else all tensors; hidden states, caches and losses then do not count.
        check: verify on numbers that channels can be moved and spaces widened, and demote those that cannot.
        seed: random seed of the checks.
        progress: True or False, or a function of a label and the fraction done; None shows a bar on terminals, and
            elsewhere writes to the log (logging, level INFO).
    """
    check, seed = check_flag(check, "check"), check_seed(seed)
    with reporting(progress) as report:
        return traced(model, Inputs.of(example_inputs, output), check=check, seed=seed, progress=report)


@alone
def fuse(
    models: Sequence[nn.Module],
    example_inputs: Any = None,
    *,
    output: Output | None = None,
    alpha: Alpha | None = None,
    budget: float | Budget | None = None,
    round_to: RoundTo = "auto",
    mix: float | Sequence[float] | Literal["auto"] | None = None,
    evaluate: Evaluate | None = None,
    method: Method = "partial-ot",
    features: Features = "auto",
    site: Site = "auto",
    similarity: Basis | None = None,
    align: Align = "fixed-point",
    masses: Masses = "equal",
    data: Iterable[Any] | None = None,
    norm: NormRule = "auto",
    refit: Refit = "auto",
    zeros: Zeros = "auto",
    convention: Convention = "value",
    blueprint: Blueprint | None = None,
    check: bool = True,
    allow_shortfall: bool = False,
    seed: int = 0,
    device: Device | None = None,
    progress: bool | ProgressCallback | None = None,
) -> Fusion:
    """Fuse two or more trained networks of one architecture into one, anywhere between average and ensemble.

    Args:
        models: the networks. The last one is the reference: the result has its class, and at alpha=0 its widths. Widths
            of elastic spaces may differ between the models.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs. May be left out where
            there is data, whose first two samples then serve. Bounds on latency hold for inputs of the size of these.
        output: which entry of the model's output is the result, by name or position. Default: "logits" where there is
            one, else what looks like it, else all tensors; hidden states, caches and losses then do not count.
        alpha: how many channels more than one model's: 0 (one model's widths) to 1 (the exact ensemble); or a mapping
            from patterns of space names to numbers, of which the first that matches counts and spaces without a match
            have 0. For "partial-ot" it is the isolated fraction. In generalised pruning it may be below 0: -0.3 has
            30 % fewer channels than the last model. Default: 0.4, and 0 for methods that fuse every channel.
        budget: instead of alpha, how large the result may be: parameters of the module that is returned relative to
            the last model, such as 1.3, or pf.Budget(dense=…, params=…, flops=…, latency=…, channels=…). Every space
            gets its own alpha: channels stay apart where that saves most of the matching cost per parameter. In
            generalised pruning some spaces may become narrower than in one model to make others wider, so that 1.0 is
            better than alpha=0; bound flops, too, where time matters.
        round_to: make every part of a space (isolated channels of each model, fused channels) a multiple of so many
            channels, which the device's kernels compute faster; alpha and budget then mean the nearest such size, which
            the summary names, and 0 and 1 stay what they are. In generalised pruning the width as a whole is rounded.
            "auto": 16 where there are convolutions and the models are on a CPU, else 8; half of it or nothing in
            spaces that are too small or have another number of channels. 1: any size.
        mix: the share of each model, in their order, summing to one; for two models a number is the share of the first:
            0.3 is [0.3, 0.7]. Or "auto": search for the shares that score best; `mixing` of the result holds what was
            measured. Default: equal shares.
        evaluate: what scores a model for mix="auto": batches of (input, label), or of mappings with "labels", for
            accuracy; or a function of a model that gives a number, larger is better, or a tensor of one number for each
            sample; samples in the same order every time. Use images that were used neither for training nor for
            testing.
        method: "auto" (what was best where it was measured: with data "interpolate" or "cluster", both refitted, of
            which the one is taken whose outputs are nearer to the models' on the data, at twice the price of one;
            for transformers "interpolate" alone, and "cluster" where a budget bounds the effective parameters; without
            data, and for models trained from one base, "partial-ot", the paper's method, not refitted); "average"
            (channel i with channel i), "permutation" (one to one: Git
            Re-Basin's weight matching, or with activations its activation matching, which is what "partial-ot" does at
            alpha=0), "ot" (optimal transport), "partial-ot" (the most similar channels are fused, the rest stay
            isolated); or generalised pruning of the ensemble: "cluster" (similar channels of any model become one),
            "interpolate" (some channels of any model are kept, and the others are read as linear combinations of them),
            "zip" (the most correlated become pairs), "magnitude" (the least important are deleted), "magnitude+ot" (and
            merged into the others by optimal transport). Or an object with settings: pf.Cluster(…), pf.Interpolate(…),
            pf.Zip(…), pf.Magnitude(…).
        features: compare channels by "weights", by "activations" on the data, or by "both". "auto" takes activations
            when there is data, and both for clustering. Activations are matched by correlation; "distances" matches
            them by squared distance, as the paper does. "interpolate" works on activations alone; without data they
            are those of noise.
        site: take activations "pre" the activation function or "post"; "auto" is pre, but in generalised pruning post
            for spaces with batch norm, in networks with ReLU, for "zip" and for "interpolate".
        similarity: compare channels ("permutation") or, in spaces that may be rotated, directions ("rotation"): the
            residual stream of a transformer that is read through norms alone, queries with keys and values within a
            head, linear layers in a row. Everywhere else channels are compared. "auto" tries both, and takes the
            result whose outputs are nearer to the models' on the data, see `compared` of the result; without data it is
            permutation. Default: rotation for transformers where the method is "auto" and there is data, else
            permutation.
        align: "fixed-point" (coordinate descent over all spaces) or "greedy" (one pass).
        masses: how much each channel counts in optimal transport, for "ot" and "partial-ot" with a given alpha: "equal"
            (one to one where widths are equal), or by the norm of its "incoming" or "outgoing" weights, each model's
            summing to one. A channel may then be fused with several. Heads count the same in any case.
        data: batches of inputs, of (input, label) pairs or of mappings of keyword inputs; labels are not used.
        norm: statistics of batch norms: "recalibrate" on the data, or the "analytic" data-free rule. "repair" also
            gives fused channels that no norm follows the spread and mean of their sources, from the data, or from
            weights alone. "auto" is recalibrate or analytic, and repair for networks without norms where there is data;
            it leaves statistics alone that still hold, such as those of a model fused with its twin.
        refit: fit the result's layers to the models on the data afterwards, see `refit`; or the strength of its ridge.
            "auto" does so where the method is "auto", there is data, and the models were not trained from one base.
        zeros: what refitting may do with the zero blocks between channels of different models: fill them ("free") or
            not ("kept"). Filled, the result is nearer to the models and the dense module as large as before, but blocks
            and files then hold all of it. "auto" is free, and kept where a budget bounds the effective parameters.
        convention: "value" (a channel is the average of what is fused) or "mass" (the paper's form: it is the sum of
            the mass it receives, and with unequal widths channels that are matched in part are split).
        blueprint: a traced blueprint of the last model, to save tracing it again.
        check: verify the blueprint when it is traced here, and at alpha=1 that the result is the ensemble.
        allow_shortfall: accept a result that falls short of what was asked for, with a warning instead of an error: at
            alpha=1 one that is not the ensemble, the plain average where no channels can be matched, or with a bound on
            latency one that is slower than the models one by one.
        seed: random seed of the checks, and of the search in generalised pruning.
        device: where to compute the heavy parts (costs, products, least squares), such as "cuda"; the models and
            the result stay where they are. Default: there, too.
        progress: True or False, or a function of a label and the fraction done; None shows a bar on terminals, and
            elsewhere writes to the log (logging, level INFO).
    """
    check, allow_shortfall = check_flag(check, "check"), check_flag(allow_shortfall, "allow_shortfall")
    check_models(models)
    if budget is not None and alpha is not None:
        raise OptionError("alpha and budget exclude each other: a budget finds an alpha for every space")
    if budget is not None:
        check_masses_in_budget(masses)
    auto = isinstance(mix, str) and mix == "auto"  # an array compares with a text element by element
    if auto != (evaluate is not None):
        raise OptionError(
            "mix='auto' and evaluate=… go together: pass labelled batches or a function of a model, with mix='auto'"
        )
    inputs, batches = inputs_and_batches(example_inputs, data, models[-1], output)
    bound = None if budget is None else Budget.of(budget)
    recipe = resolve(
        method=method,
        features=features,
        site=site,
        similarity=similarity,
        align=align,
        masses=masses,
        norm=norm,
        convention=convention,
        alpha=alpha,
        keep=None,
        mix=check_mix(None if auto else mix, len(models)),
        seed=seed,
        round_to=round_to,
        refit=refit,
        zeros=zeros,
        has_data=batches is not None,
        effective=bound is not None and bound.effective,
        related=isinstance(method, str) and method == "auto" and of_one_base(models),
    )
    scorer = None if evaluate is None else Scorer.of(evaluate, inputs.signature)
    with reporting(progress) as report, computing_on(device):
        if blueprint is None:
            resizes = bound is not None or recipe.pruning is not None or recipe.alpha != 0
            blueprint = traced(models[-1], inputs, check=check, seed=recipe.seed, untie=resizes, progress=report)
        pipeline = Pipeline(models, inputs, blueprint, batches, report, check, allow_shortfall)
        reduced = pipeline.reduce(recipe, bound, exact=norm == "auto")
        return reduced.fusion if scorer is None else best_mix(pipeline, reduced, scorer)


@alone
def prune(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    output: Output | None = None,
    keep: Keep | None = None,
    budget: float | Budget | None = None,
    round_to: RoundTo = "auto",
    method: PruningName | PruningMethod = "cluster",
    features: Features = "auto",
    site: Site = "auto",
    similarity: Basis | None = None,
    data: Iterable[Any] | None = None,
    norm: NormRule = "auto",
    refit: Refit = "auto",
    convention: Convention = "value",
    blueprint: Blueprint | None = None,
    check: bool = True,
    allow_shortfall: bool = False,
    seed: int = 0,
    device: Device | None = None,
    progress: bool | ProgressCallback | None = None,
) -> Fusion:
    """Compress one trained network: its channels may be isolated, deleted or linearly combined.

    Args:
        model: the network; it stays as it is.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs. May be left out where
            there is data, whose first two samples then serve. Bounds on latency hold for inputs of the size of these.
        output: which entry of the model's output is the result, by name or position. Default: "logits" where there is
            one, else what looks like it, else all tensors; hidden states, caches and losses then do not count.
        keep: the fraction of the channels that is kept, 1 for all of them; or a mapping from patterns of space names to
            numbers, of which the first that matches counts and spaces without a match keep all. Default: 0.5.
        budget: instead of keep, how large the result may be: parameters relative to the model, such as 0.3, or
            pf.Budget(dense=…, flops=…, latency=…, channels=…). Channels go where they save most per parameter.
        round_to: make the width of every space a multiple of so many channels, which the device's kernels compute
            faster; keep and budget then mean the nearest such size, which the summary names. "auto" as for `fuse`;
            1: any size.
        method: "auto" (with data "interpolate" or "cluster", refitted, whichever is nearer to the model; "cluster"
            without), "cluster" (similar channels become one),
            "interpolate" (some channels are kept, and the others are read as linear combinations of them), "zip" (the
            most correlated become pairs), "magnitude" (the least important are deleted), "magnitude+ot" (and merged
            into the others by optimal transport); or an object with settings: pf.Cluster(…), pf.Interpolate(…),
            pf.Zip(…), pf.Magnitude(…).
        features: compare channels by "weights", by "activations" on the data, or by "both". "auto" takes both when
            there is data, and activations alone for methods other than clustering. "interpolate" works on activations
            alone; without data they are those of noise.
        site: take activations "pre" the activation function or "post"; "auto" is pre, but post for spaces with batch
            norm, in networks with ReLU, for "zip" and for "interpolate".
        similarity: choose among channels ("permutation") or, in spaces that may be rotated, among the principal
            directions ("rotation"), as SliceGPT does; "auto" and the default as for `fuse`.
        data: batches of inputs, of (input, label) pairs or of mappings of keyword inputs; labels are not used.
        norm: statistics of batch norms: "recalibrate" on the data, or the "analytic" data-free rule. "repair" also
            gives channels that no norm follows the spread and mean that they had, from the data, or from weights
            alone. "auto" is recalibrate or analytic, and repair for networks without norms where there is data.
        refit: fit the result's layers to the models on the data afterwards, see `refit`; or the strength of its ridge.
            "auto" does so where the method is "auto" and there is data.
        convention: "value" (a channel is the average of what it combines) or "mass" (the paper's form: the sum).
        blueprint: a traced blueprint of the model, to save tracing it again.
        check: verify the blueprint when it is traced here, and at keep=1 that the result is the model.
        allow_shortfall: accept a result that falls short of what was asked for, with a warning instead of an error: at
            keep=1 one that is not the model, or the model itself where no space can change its width.
        seed: random seed of the search and the checks.
        device: where to compute the heavy parts (costs, products, least squares), such as "cuda"; the models and
            the result stay where they are. Default: there, too.
        progress: True or False, or a function of a label and the fraction done; None shows a bar on terminals, and
            elsewhere writes to the log (logging, level INFO).
    """
    check, allow_shortfall = check_flag(check, "check"), check_flag(allow_shortfall, "allow_shortfall")
    check_tensors(model, "the model")
    if budget is not None and keep is not None:
        raise OptionError("keep and budget exclude each other: a budget finds what to keep of every space")
    inputs, batches = inputs_and_batches(example_inputs, data, model, output)
    recipe = resolve(
        method=method,
        features=features,
        site=site,
        similarity=similarity,
        align="greedy",
        norm=norm,
        convention=convention,
        alpha=None,
        keep=0.5 if keep is None else keep,
        mix=(1.0,),
        seed=seed,
        round_to=round_to,
        refit=refit,
        has_data=batches is not None,
    )
    bound = None if budget is None else Budget.of(budget)
    with reporting(progress) as report, computing_on(device):
        if blueprint is None:
            blueprint = traced(model, inputs, check=check, seed=recipe.seed, progress=report)
        pipeline = Pipeline([model], inputs, blueprint, batches, report, check, allow_shortfall)
        return pipeline.reduce(recipe, bound, exact=norm == "auto").fusion


@alone
def refit(
    result: Fusion,
    data: Iterable[Any],
    *,
    ridge: float = RIDGE,
    zeros: Zeros = "auto",
    device: Device | None = None,
    progress: bool | ProgressCallback | None = None,
) -> Fusion:
    """Fit the layers of a fused or pruned model to what its sources compute, without labels.

    Layer by layer, by ridge least squares from the model's own inputs to the sources' pre-activations, held to the
    weights it has. Norm statistics are measured again. A few hundred to some thousand inputs like those the models were
    trained on are enough.

    Args:
        result: what `fuse` or `prune` returned; it stays as it is.
        data: batches of inputs, of (input, label) pairs or of mappings of keyword inputs; labels are not used.
        ridge: how strongly weights are held, relative to the mean square of what they read.
        zeros: fill the zero blocks ("free"), or keep them at zero ("kept"), as the block form and small files need.
            "auto" is what the options of the fusion say: free, unless its budget bounds the effective parameters.
        device: where to compute the heavy parts (costs, products, least squares), such as "cuda"; the models and
            the result stay where they are. Default: there, too.
        progress: True or False, or a function of a label and the fraction done; None shows a bar on terminals, and
            elsewhere writes to the log (logging, level INFO).

    Returns:
        A new result with its own model.
    """
    check_result(result)
    batches = Batches.of(data, result.inputs)
    if batches is None:
        raise DataError("refit needs data: pass batches of inputs (labels are not used)")
    recipe = replace(result.recipe, refit=ridge_of(ridge), zeros=zeros_of(zeros, result.recipe.zeros))
    model = copy.deepcopy(result.model)
    with reporting(progress) as report, computing_on(device):
        left = refit_result(result, model, batches, recipe, report)
    counted = count(SurgeryResult(model, result.plan), result.sources[-1])
    return replace(result, model=model, recipe=recipe, count=counted, unrefitted=left)
