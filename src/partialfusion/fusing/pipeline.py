"""The pipeline: match, operate, set the norm statistics; and the same again for other shares of the models."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ..blueprint import Blueprint, trace_labels
from ..core.batches import Batches
from ..core.inputs import Inputs, run
from ..core.literals import Mix
from ..core.modules import named_tensors, plain
from ..core.progress import ProgressCallback
from ..core.text import shorten
from ..errors import VerificationError
from ..features import Need
from ..kernels import PlanTemplate
from ..surgery import ResizeError, SurgeryResult, analytic, apply, count, recalibrate, refit_model, verify
from ..surgery.config import follow_config, refuse
from ..surgery.verify import close, deviation
from .align import Aligner
from .budget import Budget, allocator
from .methods import Interpolate
from .options import Recipe
from .pruning import UnionPruner
from .result import Fusion, not_interpolated
from .sources import Sources
from .validation import check_alpha, check_keep, check_tensors

log = logging.getLogger(__name__)


def traced(model: nn.Module, inputs: Inputs, *, check: bool, seed: int) -> Blueprint:
    """The blueprint of a model, verified on numbers unless `check` is False."""
    check_tensors(model, "the model")
    model = plain(model)
    blueprint = trace_labels(model, inputs)
    return verify(model, inputs, blueprint, seed) if check else blueprint


def needs_of(recipe: Recipe, models: int) -> set[Need]:
    """What a recipe will ask of the activations."""
    found = set()
    if recipe.features != "weights" and recipe.method != "average" and models > 1:
        found.add(Need(recipe.site))
    if recipe.pruning is not None and (recipe.features != "weights" or recipe.pruning.needs_data):
        found.add(Need(recipe.site, within=recipe.features != "weights"))
    return found


@dataclass(frozen=True)
class Reduced:
    """A result, and what gives it for other shares of the models.

    Attributes:
        fusion: the result for the recipe's shares.
        template: what is matched with what.
        sizes: elastic space → isolated fraction, or for one model the fraction that is kept.
        exact: whether norm statistics are left alone where nothing is reduced.
    """

    fusion: Fusion
    template: PlanTemplate
    sizes: Mapping[str, float]
    exact: bool


@dataclass
class Pipeline:
    """The models, what there is to measure on, and how to go about it.

    One pipeline may serve many recipes: what is measured of the models, and what their alignments have in common, is
    computed once.

    Attributes:
        models: one or more models.
        inputs: example inputs.
        blueprint: the blueprint of the last model.
        batches: unlabelled data.
        progress: called with what is being done and the fraction that is done.
        check: verify that alpha=1 is the ensemble.
        needs: what the recipes will ask of the activations; what is not announced costs another pass over the data.
        alphas: isolated fractions of the recipes; those that are announced are solved together.
    """

    models: Sequence[nn.Module]
    inputs: Inputs
    blueprint: Blueprint
    batches: Batches | None
    progress: ProgressCallback
    check: bool
    needs: set[Need] = field(default_factory=set)
    alphas: Sequence[float] = ()

    def __post_init__(self) -> None:
        given, self.models = self.models, [plain(m) for m in self.models]
        self._folded = any(m is not p for m, p in zip(given, self.models, strict=True))
        if self._folded:
            log.warning("parametrised weights, such as those of weight norm, are plain weights in the result")
        self.sources = Sources(self.models, self.blueprint, self.inputs, self.batches, self.needs, self.alphas)
        self._aligners: dict[object, Aligner] = {}
        self._pruners: dict[object, UnionPruner] = {}
        self._warned: set[str] = set()

    def reporting_to(self, progress: ProgressCallback) -> Pipeline:
        """The same pipeline, with all that it knows, that reports to somebody else."""
        other = copy.copy(self)
        other.progress = progress
        return other

    def reduce(self, recipe: Recipe, budget: Budget | None = None, *, exact: bool = False) -> Reduced:
        """The union of the models reduced as the recipe says, or to the size of a budget.

        Args:
            recipe: the options.
            budget: bounds on the result, instead of the recipe's sizes.
            exact: leave norm statistics alone where nothing is reduced.
        """
        if recipe.needs_equal_widths:
            self.sources.require_equal_widths(recipe.method)
        self.sources.needs |= needs_of(recipe, len(self.models))
        if budget is None:
            sizes = self._sizes(recipe)
            template = self._template(recipe, sizes)
        else:
            recipe, sizes, template = self._within(budget, recipe)
        self._warn_of_unseen(recipe)
        result, template = self._operate(template, recipe)
        sizes = {space: sizes[space] for space in self.sources.names("elastic")}
        return Reduced(self._finished(result, recipe, sizes, exact=exact), template, sizes, exact)

    def remix(self, reduced: Reduced, mix: Mix) -> Fusion:
        """The result for other shares of the models; what is matched stays."""
        result = apply(self.models, self.sources.blueprints, reduced.template.plan(mix), self.inputs)
        return self._finished(result, replace(reduced.fusion.recipe, mix=mix), reduced.sizes, exact=reduced.exact)

    def aligner(self, recipe: Recipe) -> Aligner:
        """The aligner of a recipe, shared by all that differ in sizes and shares only."""
        key = _matching_options(recipe)
        if key not in self._aligners:
            self._aligners[key] = Aligner(self.sources, recipe)
        return self._aligners[key]

    def _pruner(self, recipe: Recipe) -> UnionPruner | None:
        if recipe.pruning is None:
            return None
        key = _matching_options(recipe)
        if key not in self._pruners:
            self._pruners[key] = UnionPruner(self.sources, self.aligner(recipe), recipe, recipe.pruning)
        return self._pruners[key]

    def _sizes(self, recipe: Recipe) -> dict[str, float]:
        """Elastic space → the number the user gave; patterns are those of the blueprint before anything was demoted."""
        if recipe.keep is not None:
            return check_keep(recipe.keep, self.blueprint)
        assert recipe.alpha is not None
        return check_alpha(recipe.alpha, self.blueprint, partial=recipe.partial)

    def _template(self, recipe: Recipe, sizes: Mapping[str, float]) -> PlanTemplate:
        """What is matched with what at the given sizes."""
        elastic = {space: sizes[space] for space in self.sources.names("elastic")}
        pruner = self._pruner(recipe)
        if pruner is None:
            return self.aligner(recipe).template(elastic)
        targets = {}
        for space, size in elastic.items():
            step = self.sources.blueprint[space].step
            *others, last = (n // step for n in self.sources.widths[space])
            kept = max(1, round(size * last))
            targets[space] = step * (kept if recipe.keep is not None else last + sum(round(size * n) for n in others))
        return pruner.template(targets, recipe, self.progress)

    def _within(self, budget: Budget, recipe: Recipe) -> tuple[Recipe, dict[str, float], PlanTemplate]:
        """Sizes and matching within a budget: aim lower while the plan comes out larger than predicted."""
        self.progress("allocating the budget", 0.0)
        found = allocator(self.sources, self.aligner(recipe), self._pruner(recipe), recipe, budget)
        while True:
            sized = found.recipe(recipe)
            sizes = self._sizes(sized)
            template = self._template(sized, sizes)
            plan = template.plan(recipe.mix)
            if found.holds(plan):
                return sized, sizes, template
            found = found.tighter(plan)

    def _operate(self, template: PlanTemplate, recipe: Recipe) -> tuple[SurgeryResult, PlanTemplate]:
        """Apply the plan; spaces that turn out not to follow their width are fused as wholes, all others stay."""
        while True:
            try:
                plan = template.plan(recipe.mix)
                return apply(self.models, self.sources.blueprints, plan, self.inputs), template
            except ResizeError as error:
                demoted = self._demote(error, recipe.seed)
            alignments = self.aligner(recipe).align(dict.fromkeys(self.sources.names("elastic"), 0.0))
            couplings = {s: [a.couplings[s] for a in alignments] for s in demoted}
            costs = {s: sum((a.costs.get(s, 0.0) for a in alignments), 0.0) for s in demoted}
            template = template.with_couplings(couplings, costs)

    def _demote(self, error: ResizeError, seed: int) -> list[str]:
        """Demote the spaces that do not follow their width, found by the check or else as reported; which these are."""
        before = self.sources.blueprint
        after = verify(self.models[-1], self.inputs, before, seed)
        changed = [a.name for a, b in zip(before, after, strict=True) if a.kind != b.kind]
        if not changed:
            changed, after = error.spaces, before.demote(dict.fromkeys(error.spaces, error.why), "permutable")
        log.warning("%s cannot change width and keeps that of the last model", shorten(changed))
        self.sources.demote(after)
        self._aligners.clear()
        self._pruners.clear()
        return changed

    def _warn_of_unseen(self, recipe: Recipe) -> None:
        """Nobody should believe that activations were compared where none were seen; one warning for each space."""
        unseen = [space for space in self._unseen(recipe) if space not in self._warned]
        if unseen:
            log.warning("no activations were seen of %s: matched by weights instead", shorten(unseen))
        self._warned.update(unseen)

    def _warn_once(self, notes: Sequence[str]) -> None:
        for note in notes:
            if note not in self._warned:
                log.warning("%s", note)
        self._warned.update(notes)

    def _unseen(self, recipe: Recipe) -> list[str]:
        pruner = self._pruner(recipe)
        if self.batches is None or not self.sources.recorded:
            return []
        found = [] if len(self.models) == 1 else self.aligner(recipe).unseen()
        return list(dict.fromkeys(found + ([] if pruner is None else pruner.unseen())))

    def _finished(self, result: SurgeryResult, recipe: Recipe, sizes: Mapping[str, float], *, exact: bool) -> Fusion:
        """The result, with its norm statistics set and refitted where that was asked for."""
        blueprints, batches = self.sources.blueprints, self.batches
        last = blueprints[-1]
        whole = all(size == 1.0 for size in sizes.values()) if sizes else recipe.alpha == 1.0
        shortfall = ""
        if recipe.norm == "recalibrate" and last.norms and batches is not None and not (whole and exact):
            self.progress("measuring norm statistics", 1.0)
            recalibrate(result.model, last, batches)
        else:
            analytic(result, self.models, blueprints)
            if whole and (self.check or recipe.refit):
                shortfall = self._missed(result.model, recipe.mix)
        fusion = Fusion(
            result.model,
            result.plan,
            tuple(blueprints),
            recipe,
            count(result, self.models[-1]),
            tuple(self.models),
            self.inputs.signature,
            unseen=tuple(self._unseen(recipe)),
            shortfall=shortfall,
        )
        if isinstance(recipe.pruning, Interpolate):
            self._warn_once(not_interpolated(result.plan, last))
        if recipe.refit and batches is not None and not (whole and not shortfall):
            refit_result(fusion, result.model, batches, recipe.refit, self.progress)
        follow_config(result.model, self.models[-1], self.inputs)
        if self._folded:
            refuse(result.model, "parametrised weights became plain ones")
        return fusion

    def _missed(self, result: nn.Module, mix: Mix) -> str:
        """By how much a result in which everything is kept apart misses the mix of the outputs, and why; an empty text
        where it does not."""
        blueprint = self.sources.blueprint
        if any(t.is_meta for t in named_tensors(result).values()):
            return ""
        outputs = [run(m, self.inputs) for m in self.models]
        gap = 0.0
        for found, *parts in zip(run(result, self.inputs), *outputs, strict=True):
            expected = torch.stack([w * o.to(found.device) for w, o in zip(mix, parts, strict=True)]).sum(0)
            if found.is_floating_point() and not close([found], [expected]):
                gap = max(gap, deviation(found, expected))
        if not gap:
            return ""
        why = [f"only averaged: {shorten(blueprint.averaged)}"] if blueprint.averaged else []
        if blueprint.nonlinear_after:
            why.append(f"the models are mixed before {', '.join(blueprint.nonlinear_after)}")
        if not why:
            raise VerificationError(
                "the result at alpha=1 is not the mix of the models' outputs; please report the network that shows this"
            )
        missed = "the ensemble" if len(self.models) > 1 else "the model"
        text = f"with everything kept apart, the result is not {missed}: its outputs differ by {gap:.1g} of the largest"
        log.warning("%s (%s)", text, "; ".join(why))
        return f"{text} ({'; '.join(why)})"


def _matching_options(recipe: Recipe) -> object:
    """What a recipe has in common with others that differ in sizes and shares only, as a key."""
    chosen = recipe.method, recipe.features, recipe.site, recipe.align, recipe.norm, recipe.convention
    return *chosen, id(recipe.pruning)


def refit_result(result: Fusion, model: nn.Module, batches: Batches, ridge: float, progress: ProgressCallback) -> None:
    """Fit a model, of the result's shapes and numbers, in place."""

    def report(layer: str, done: int, total: int) -> None:
        progress(f"refitting {layer}", done / total)

    progress("refitting", 0.0)
    refit_model(
        model, result.layout, result.sources, result.blueprints, result.plan, batches, ridge=ridge, on_progress=report
    )
