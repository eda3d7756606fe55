"""The pipeline: match, operate, set the norm statistics; and the same again for other shares of the models."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import nn

from ..blueprint import Blueprint, Space
from ..core.batches import Batches
from ..core.inputs import Inputs
from ..core.literals import Mix
from ..core.modules import canonical_names
from ..core.plain import holding
from ..core.progress import ProgressCallback
from ..core.text import shorten
from ..features import Need
from ..kernels import Plan, PlanTemplate
from ..rotation import Rotatable, Rotations, rotatable
from ..surgery import (
    ResizeError,
    SurgeryResult,
    analytic,
    apply,
    count,
    set_statistics,
    verify,
)
from ..surgery.config import follow_config, refuse
from .align import Aligner
from .budget import Budget, allocator
from .conform import conformed
from .methods import Interpolate
from .nearest import distances
from .notices import Notices
from .options import Recipe, told_apart
from .prepare import changes_of, traced
from .pruning import UnionPruner
from .refitting import refit_result
from .result import Fusion, not_interpolated
from .rotating import rotated
from .rounding import Rounding, rounding
from .shortfall import check_reducible, shortfall_of
from .sized import Sized, within
from .sources import Sources
from .validation import check_alpha, check_blueprint, check_keep

MEASURED_ANEW = (
    "norm='recalibrate' measures the statistics of norms anew on the data: with everything kept apart, the result is "
    "not exactly the ensemble, and this is not checked; norm='auto' keeps the statistics of the models"
)

log = logging.getLogger(__name__)


def needs_of(recipe: Recipe, models: int) -> set[Need]:
    """What a recipe will ask of the activations."""
    found = set()
    for one in recipe.alternatives:
        if one.features != "weights" and one.method != "average" and models > 1:
            found.add(Need(one.site))
        if one.pruning is not None and (one.features != "weights" or one.pruning.needs_data):
            found.add(Need(one.site, within=one.features != "weights"))
    return found


@dataclass(frozen=True)
class Reduced:
    """A result, and what gives it for other shares of the models.

    Attributes:
        fusion: the result for the recipe's shares.
        template: what is matched with what.
        recipe: the options, with the sizes that a budget gave.
        sizes: elastic space → isolated fraction, or for one model the fraction that is kept.
        exact: whether norm statistics are left alone where nothing is reduced.
        pipeline: what made it, with the models in the frames that they were fused in.
    """

    fusion: Fusion
    template: PlanTemplate
    recipe: Recipe
    sizes: Mapping[str, float]
    exact: bool
    pipeline: Pipeline


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
        allow_shortfall: accept results that fall short of what was asked for.
        needs: what the recipes will ask of the activations; what is not announced costs another pass over the data.
        alphas: isolated fractions of the recipes; those that are announced are solved together.
    """

    models: Sequence[nn.Module]
    inputs: Inputs
    blueprint: Blueprint
    batches: Batches | None
    progress: ProgressCallback
    check: bool
    allow_shortfall: bool = False
    needs: set[Need] = field(default_factory=set)
    alphas: Sequence[float] = ()

    def __post_init__(self) -> None:
        check_blueprint(self.blueprint)
        self._given, self.models = self.models, [holding(m, self.blueprint.shapes) for m in self.models]
        self._changes = changes_of(self._given[-1], self.models[-1])
        for change in self._changes:
            log.warning("%s", change)
        self.sources = Sources(self.models, self.blueprint, self.inputs, self.batches, self.needs, self.alphas)
        self._aligners: dict[object, Aligner] = {}
        self._pruners: dict[object, UnionPruner] = {}
        self.notices = Notices()
        self._originals = tuple(self.models)
        self._rotations: Rotations | None = None
        self._turned: dict[tuple[bool, str], Pipeline] = {}

    def turned(self, recipe: Recipe, budget: Budget | None, *, asked: bool) -> Pipeline:
        """The pipeline on models whose directions correspond, where the recipe says so and something may be rotated.
        Layer norms stay what they are where streams are fused as wholes.

        Where rotation was `asked` for, not just tried, tied weights are taken apart for it, and what may not be rotated
        is told.
        """
        if recipe.similarity == "permutation" or self._rotations is not None or self._apart(recipe, budget):
            return self
        if recipe.similarity is None and not self._transformer:
            return self
        found = self._rotatable
        if asked and (untied := self._untied) is not None:
            return untied.turned(recipe, budget, asked=asked)
        if not self._turns:
            if asked:
                self.notices.once(f"nothing in {type(self.models[-1]).__name__} may be rotated: channels are compared")
            return self
        if found.left and asked:
            self.notices.once(f"{shorten(found.left)} may not be rotated: there, channels are compared")
        sizes = {} if budget is not None else self._sizes(recipe)
        equal = all(len(set(self.sources.widths[s])) == 1 for s in found.directions)
        whole = budget is None and equal and recipe.keep is None and not any(sizes.get(s) for s in found.directions)
        key = whole, recipe.align
        if key not in self._turned:
            self.progress("rotating the models", 0.0)
            other = copy.copy(self)
            other.sources, other._rotations = rotated(self.sources, found, recipe, keep_norms=whole)
            other.models = other.sources.models
            other._aligners, other._pruners = {}, {}
            self._turned[key] = other
            self.notices.once(*([other._rotations.alone] if other._rotations.alone else []))
        return self._turned[key].reporting_to(self.progress)

    @property
    def _transformer(self) -> bool:
        """Whether there are norms across channels, or heads."""
        blueprint = self.sources.blueprint
        return bool(blueprint.normed) or any(s.bundle for s in blueprint)

    def _apart(self, recipe: Recipe, budget: Budget | None) -> bool:
        """Whether everything stays isolated, so that nothing is compared."""
        sizes = {} if budget is not None or recipe.keep is not None else self._sizes(recipe)
        return bool(sizes) and all(size == 1.0 for size in sizes.values())

    @property
    def _turns(self) -> bool:
        """Whether something may be rotated that makes a difference."""
        return bool(self._rotatable.spaces if len(self.models) > 1 else self._rotatable.directions)

    @cached_property
    def _rotatable(self) -> Rotatable:
        self.sources.require_numbers()
        return rotatable(self.models, self.sources.blueprints, self.inputs)

    @cached_property
    def _untied(self) -> Pipeline | None:
        """The pipeline on models in which weights are apart that are both the embedding and the last layer, where a
        stream may be rotated then and not before: the scale of its last norm goes into the last layer alone."""
        left = set(self._rotatable.left)
        first = canonical_names(self._given[-1])
        tied = {w for s in self.sources.blueprint if s.name in left for w in _written_and_read(s)}
        apart = [name for name in first if name != first[name] and first[name] in tied]
        if not apart:
            return None
        held = [holding(m, {*self.blueprint.shapes, *apart}) for m in self._given]
        blueprint = traced(held[-1], self.inputs, check=self.check, seed=0)
        found = rotatable(held, conformed(held, blueprint, self.inputs), self.inputs)
        return replace(self, models=self._given, blueprint=blueprint) if set(found.directions) & left else None

    def reporting_to(self, progress: ProgressCallback) -> Pipeline:
        """The same pipeline, with all that it knows, that reports to somebody else."""
        other = copy.copy(self)
        other.progress = progress
        return other

    def reduce(self, recipe: Recipe, budget: Budget | None = None, *, exact: bool = False) -> Reduced:
        """The union of the models reduced as the recipe says, or to the size of a budget.

        Where the recipe leaves methods open, or whether channels or directions are compared, all are tried, and the
        result that is nearest to the models on the data is taken.

        Args:
            recipe: the options.
            budget: bounds on the result, instead of the recipe's sizes.
            exact: leave norm statistics alone where nothing is reduced.
        """
        first, *others = self._alternatives(recipe, budget)
        asked = recipe.similarity == "rotation"
        for other in others:
            self.sources.needs |= needs_of(other, len(self.models))
        found = [self._reduce(first, budget, exact=exact, asked=asked)]
        whole = bool(recipe.refit) and not found[0].fusion.recipe.refit
        if not others or self.batches is None or whole:
            return found[0]
        found += [self._reduce(other, budget, exact=exact, asked=asked) for other in others]
        self.progress("comparing", 1.0)
        apart = distances([r.fusion.model for r in found], self.models, first.mix, self.batches)
        compared = dict(zip(told_apart([first, *others]), apart, strict=True))
        best = found[apart.index(min(apart))]
        return replace(best, fusion=replace(best.fusion, compared=compared))

    def _alternatives(self, recipe: Recipe, budget: Budget | None) -> list[Recipe]:
        """The recipes to try. Transformers are only interpolated, which was best wherever it was measured, and where
        nothing is compared or may be rotated, directions are channels."""
        found = recipe.alternatives
        if self._transformer:
            found = [one for one in found if one.method == found[0].method]
        if recipe.similarity == "auto" and (self._apart(recipe, budget) or not self._turns):
            found = [one for one in found if one.similarity != "rotation"]
        return found

    def _reduce(self, recipe: Recipe, budget: Budget | None, *, exact: bool, asked: bool) -> Reduced:
        """The union reduced by one method."""
        pipeline = self.turned(recipe, budget, asked=asked)
        recipe = replace(recipe, similarity="rotation" if pipeline._rotations else "permutation")
        if pipeline is not self:
            return pipeline._reduce(recipe, budget, exact=exact, asked=asked)
        if budget is not None or not (recipe.is_average or recipe.keep == 1.0):
            fuses, allowed = len(self.models) > 1, self.allow_shortfall
            check_reducible(self.models[-1], self.sources.blueprint, fuses=fuses, allowed=allowed)
        if exact and self._fades:
            recipe = replace(recipe, norm="repair")
        if recipe.needs_equal_widths:
            self.sources.require_equal_widths(recipe.method)
        self.sources.needs |= needs_of(recipe, len(self.models))
        if budget is None:
            sized = self._matched(recipe)
        else:
            sized = self._affordable(budget, recipe)
            self.notices.operations(sized.operations, len(self.models))
        recipe = sized.recipe
        self.notices.unseen(self._unseen(recipe))
        result, template = self._operate(sized.template, recipe)
        sizes = {space: sized.sizes[space] for space in self.sources.names("elastic")}
        fusion = replace(
            self._finished(result, recipe, sizes, exact=exact), latency=sized.latency, operations=sized.operations
        )
        return Reduced(fusion, template, recipe, sizes, exact, self)

    @property
    def _fades(self) -> bool:
        """Whether no norm keeps fused channels from fading, and there is data to repair them with."""
        return self.batches is not None and not self.blueprint.norms and not self.blueprint.norm_layers

    def remix(self, reduced: Reduced, mix: Mix) -> Fusion:
        """The result for other shares of the models; what is matched stays."""
        made = reduced.pipeline.reporting_to(self.progress)
        result = apply(made.models, made.sources.blueprints, reduced.template.plan(mix), self.inputs)
        fusion = made._finished(result, replace(reduced.recipe, mix=mix), reduced.sizes, exact=reduced.exact)
        known = reduced.fusion
        return replace(fusion, latency=known.latency, operations=known.operations, compared=known.compared)

    def aligner(self, recipe: Recipe) -> Aligner:
        """The aligner of a recipe, shared by all that differ in sizes and shares only."""
        key = _matching_options(recipe)
        if key not in self._aligners:
            self._aligners[key] = Aligner(self.sources, recipe)
        self._aligners[key].progress = self.progress
        return self._aligners[key]

    def _pruner(self, recipe: Recipe) -> UnionPruner | None:
        if recipe.pruning is None:
            return None
        key = _matching_options(recipe)
        if key not in self._pruners:
            self._pruners[key] = UnionPruner(self.sources, self.aligner(recipe), recipe, recipe.pruning)
        return self._pruners[key]

    def _asked(self, recipe: Recipe) -> dict[str, float]:
        """Elastic space → the number the user gave; patterns are those of the blueprint before anything was demoted."""
        if recipe.keep is not None:
            return check_keep(recipe.keep, self.blueprint)
        assert recipe.alpha is not None
        return check_alpha(recipe.alpha, self.blueprint, partial=recipe.partial, prunes=recipe.pruning is not None)

    def _sizes(self, recipe: Recipe) -> dict[str, float]:
        """Elastic space → the nearest size that it may have."""
        grids, single = self.sources.grids(recipe.round_to), recipe.keep is not None
        return {
            space: (grids[space].keep(size) if single else grids[space].alpha(size)) if space in grids else size
            for space, size in self._asked(recipe).items()
        }

    def _rounding(self, recipe: Recipe, sizes: Mapping[str, float]) -> Rounding:
        found, single = self.sources.grids(recipe.round_to), recipe.keep is not None
        return rounding(recipe.round_to, self.sources.blueprint, found, self._asked(recipe), sizes, keep=single)

    def _matched(self, recipe: Recipe) -> Sized:
        """What is matched with what at the sizes of a recipe."""
        sizes = self._sizes(recipe)
        return Sized(recipe, sizes, self._template(recipe, sizes))

    def _template(self, recipe: Recipe, sizes: Mapping[str, float]) -> PlanTemplate:
        elastic = {space: sizes[space] for space in self.sources.names("elastic")}
        pruner = self._pruner(recipe)
        if pruner is None:
            return self.aligner(recipe).template(elastic)
        grids, single = self.sources.grids(recipe.round_to), recipe.keep is not None
        targets = {s: grids[s].step * grids[s].steps(size, keep=single) for s, size in elastic.items()}
        return pruner.template(targets, recipe, self.progress)

    def _affordable(self, budget: Budget, recipe: Recipe) -> Sized:
        """Sizes and matching within a budget; spaces that cannot take the widths that are timed keep theirs."""
        while True:
            try:
                return self._within(budget, recipe)
            except ResizeError as error:
                self._demote(error, recipe.seed)

    def _within(self, budget: Budget, recipe: Recipe) -> Sized:
        def made(plan: Plan) -> nn.Module:
            return apply(self.models, self.sources.blueprints, plan, self.inputs).model

        self.progress("allocating the budget", 0.0)
        found = allocator(self.sources, self.aligner(recipe), self._pruner(recipe), recipe, budget)
        allowed = self.allow_shortfall
        return within(budget, found, recipe, self._matched, made, self.progress, allow_slower=allowed)

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

    def _unseen(self, recipe: Recipe) -> list[str]:
        pruner = self._pruner(recipe)
        if self.batches is None or not self.sources.recorded:
            return []
        found = [] if len(self.models) == 1 else self.aligner(recipe).unseen()
        return list(dict.fromkeys(found + ([] if pruner is None else pruner.unseen())))

    def _finished(self, result: SurgeryResult, recipe: Recipe, sizes: Mapping[str, float], *, exact: bool) -> Fusion:
        """The result, with its norm statistics set and refitted where that was asked for."""
        blueprints, batches = self.sources.blueprints, self.batches
        whole = all(size == 1.0 for size in sizes.values()) if sizes else recipe.alpha == 1.0
        shortfall = ""
        unrepaired: tuple[str, ...] = ()
        if whole and (exact or recipe.norm != "recalibrate" or not self.blueprint.norms):
            analytic(result, self.models, blueprints)
            if self.check or recipe.refit:
                shortfall = shortfall_of(
                    result.model,
                    self.models,
                    self.sources.blueprint,
                    self.inputs,
                    recipe.mix,
                    allowed=self.allow_shortfall,
                )
        elif not (exact and recipe.norm == "recalibrate" and self.sources.agree_with(result.model, recipe.mix)):
            if whole:
                self.notices.once(MEASURED_ANEW)
            unrepaired = set_statistics(result, self.models, blueprints, recipe.norm, batches, self.progress)
        if not shortfall:
            self.notices.averaging(self.models, self.sources.blueprint, recipe, sizes)
        rounded = self._rounding(recipe, sizes)
        if rounded.unmet:
            self.notices.once(f"{rounded.not_met(recipe.round_to)}")
        refits = bool(recipe.refit) and batches is not None and not (whole and not shortfall)
        fusion = Fusion(
            result.model,
            result.plan,
            tuple(blueprints),
            recipe if refits else replace(recipe, refit=0.0),
            count(result, self.models[-1]),
            self._originals,
            self.inputs.signature,
            unseen=tuple(self._unseen(recipe)),
            shortfall=shortfall,
            changes=self._changes,
            unrepaired=unrepaired,
            rotations=self._rotations,
            equivalents=tuple(self.models),
            rounding=rounded,
        )
        if isinstance(recipe.pruning, Interpolate):
            self.notices.once(*not_interpolated(result.plan, blueprints[-1]))
        if refits and batches is not None:
            left = refit_result(fusion, result.model, batches, recipe, self.progress)
            fusion = replace(fusion, count=count(result, self.models[-1]), unrefitted=left)
        follow_config(result.model, self.models[-1], self.inputs)
        if self._changes:
            refuse(result.model, "; ".join(self._changes))
        return fusion


def _written_and_read(space: Space) -> set[str]:
    """Weights that write a space and read it."""
    written, read = ({b.parameter for b in space.bindings if b.role == role} for role in ("writes", "reads"))
    return written & read


def _matching_options(recipe: Recipe) -> object:
    """What a recipe has in common with others that differ in sizes and shares only, as a key."""
    chosen = recipe.method, recipe.features, recipe.site, recipe.align, recipe.norm, recipe.convention
    return *chosen, recipe.masses, recipe.round_to, id(recipe.pruning)
