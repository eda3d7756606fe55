"""The main flow: match, operate, set the statistics; and the same again for other shares of the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..blueprint import Blueprint, trace_labels
from ..core.batches import Batches
from ..core.literals import Mix
from ..core.modules import named_tensors, run
from ..core.progress import ProgressCallback
from ..errors import VerificationError
from ..kernels import Draft, Plan
from ..surgery import ResizeError, SurgeryResult, analytic, apply, count, recalibrate, refit_model, verify
from ..surgery.verify import close
from .align import couple_models
from .budget import Budget, spender
from .options import Recipe
from .pruning.union import prune_union
from .result import Fusion
from .validation import check_alpha, check_keep, check_tensors, conformed


def traced(model: nn.Module, inputs: tuple[Any, ...], *, check: bool, seed: int) -> Blueprint:
    """The blueprint of a model, verified on numbers unless `check` is False."""
    check_tensors(model, "the model")
    blueprint = trace_labels(model, inputs)
    return verify(model, inputs, blueprint, seed) if check else blueprint


@dataclass(frozen=True)
class Reduced:
    """A result, and what gives it for other shares of the models.

    Attributes:
        fusion: for the recipe's shares.
        draft: what is matched with what.
        shares: elastic space → isolated share, or for one model the share that is kept.
    """

    fusion: Fusion
    draft: Draft
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Flow:
    """The models, what there is to measure on, and how to go about it.

    Attributes:
        models: one or more.
        inputs: example inputs.
        batches: unlabelled data.
        listener: told what is being done.
        check: verify what is traced here, and that alpha=1 is the ensemble.
        exact: leave norm statistics alone where nothing is reduced.
    """

    models: Sequence[nn.Module]
    inputs: tuple[Any, ...]
    batches: Batches | None
    listener: ProgressCallback
    check: bool
    exact: bool

    def reduce(self, recipe: Recipe, blueprint: Blueprint | None, budget: Budget | None) -> Reduced:
        """The union of the models reduced as the recipe says, or to the size of a budget."""
        last = self.models[-1]
        if blueprint is None:
            self.listener("tracing", 0.0)
            blueprint = traced(last, self.inputs, check=self.check, seed=recipe.seed)
        spending = None
        if budget is not None:
            self.listener("allocating the budget", 0.0)
            spending = spender(self.models, blueprint, self.inputs, self.batches, recipe, budget)
            recipe = spending.recipe(recipe)
        wanted = _wanted(blueprint, recipe)
        while True:
            blueprints = conformed(self.models, blueprint, self.inputs, equal=recipe.needs_equal_widths)
            shares = {s.name: wanted[s.name] for s in blueprint if s.kind == "elastic"}
            draft = self._draft(blueprints, shares, recipe)
            plan = draft.plan(recipe.mix)
            if spending is not None and not spending.holds(plan):
                spending = spending.tighter(plan)
                recipe = spending.recipe(recipe)
                wanted = _wanted(blueprint, recipe)
                continue
            try:
                surgery_result = apply(self.models, blueprints, plan, self.inputs)
                break
            except ResizeError as error:
                blueprint = _without(blueprint, error, last, self.inputs, recipe.seed)
        return Reduced(self._finished(surgery_result, blueprints, plan, recipe, shares), draft, shares)

    def remix(self, reduced: Reduced, mix: Mix) -> Fusion:
        """The result for other shares of the models; what is matched stays."""
        blueprints, plan = reduced.fusion.blueprints, reduced.draft.plan(mix)
        surgery_result = apply(self.models, blueprints, plan, self.inputs)
        return self._finished(surgery_result, blueprints, plan, replace(reduced.fusion.recipe, mix=mix), reduced.shares)

    def _draft(self, blueprints: Sequence[Blueprint], shares: Mapping[str, float], recipe: Recipe) -> Draft:
        if recipe.pruning is None:
            return couple_models(self.models, blueprints, shares, self.batches, recipe)
        targets = {}
        for space, share in shares.items():
            *others, last = (b[space].width for b in blueprints)
            kept = max(1, round(share * last))
            targets[space] = kept if recipe.keep is not None else last + sum(round(share * n) for n in others)
        return prune_union(self.models, blueprints, targets, self.batches, recipe, recipe.pruning, self.listener)

    def _finished(
        self,
        surgery_result: SurgeryResult,
        blueprints: Sequence[Blueprint],
        plan: Plan,
        recipe: Recipe,
        shares: Mapping[str, float],
    ) -> Fusion:
        """The result, with its norm statistics set and refitted where that was asked for."""
        last, batches = blueprints[-1], self.batches
        whole = all(share == 1.0 for share in shares.values())
        if recipe.norm == "recalibrate" and last.norms and batches is not None and not (whole and self.exact):
            self.listener("measuring norm statistics", 1.0)
            recalibrate(surgery_result.model, last, batches)
        else:
            analytic(surgery_result, self.models, blueprints, plan)
            if self.check and whole:
                self._check_ensemble(surgery_result.model, recipe.mix, last)
        counted = count(surgery_result, plan, self.models[-1])
        plan = replace(plan, layout=surgery_result.layout)
        sources = tuple(self.models)
        result = Fusion(surgery_result.model, plan, tuple(blueprints), recipe, counted, sources, len(self.inputs))
        if recipe.refit and batches is not None and not whole:
            refit_result(result, surgery_result.model, batches, recipe.refit, self.listener)
        return result

    def _check_ensemble(self, result: nn.Module, mix: Mix, blueprint: Blueprint) -> None:
        """With nothing averaged and nothing after the last weights, alpha=1 is the mix of the outputs."""
        if blueprint.averaged or blueprint.nonlinear_after or any(t.is_meta for t in named_tensors(result).values()):
            return
        outputs = [run(m, self.inputs) for m in self.models]
        if not all(isinstance(o, torch.Tensor) for o in outputs):
            return
        expected = sum(w * o.to(outputs[-1].device) for w, o in zip(mix, outputs, strict=True))
        if not close(run(result, self.inputs), expected):
            raise VerificationError(
                "the result at alpha=1 is not the mix of the models' outputs; please report the network that shows this"
            )


def refit_result(result: Fusion, model: nn.Module, batches: Batches, ridge: float, listener: ProgressCallback) -> None:
    """Fit a model, of the result's shapes and numbers, in place."""

    def tell(layer: str, done: int, total: int) -> None:
        listener(f"refitting {layer}", done / total)

    listener("refitting", 0.0)
    refit_model(
        model, result.layout, result.sources, result.blueprints, result.plan, batches, ridge=ridge, on_progress=tell
    )


def _wanted(blueprint: Blueprint, recipe: Recipe) -> dict[str, float]:
    """Elastic space → the number the user gave: the isolated share, or for one model the share that is kept."""
    if recipe.keep is not None:
        return check_keep(recipe.keep, blueprint)
    assert recipe.alpha is not None
    return check_alpha(recipe.alpha, blueprint, partial=recipe.partial)


def _without(
    blueprint: Blueprint, error: ResizeError, model: nn.Module, inputs: tuple[Any, ...], seed: int
) -> Blueprint:
    """The blueprint with the spaces demoted that do not follow their width: found by the check, else as reported."""
    verified = verify(model, inputs, blueprint, seed)
    if any(a.kind != b.kind for a, b in zip(blueprint, verified, strict=True)):
        return verified
    return blueprint.demote(dict.fromkeys(error.spaces, error.why), "permutable")
