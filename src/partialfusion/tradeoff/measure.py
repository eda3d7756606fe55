"""The frontier of some models: parents, ensemble and fusions of every size, measured one after the other."""

from __future__ import annotations

import logging
import string
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from torch import nn

from ..blueprint import Blueprint
from ..core.alone import alone
from ..core.examples import inputs_and_batches
from ..core.inputs import Output
from ..core.literals import Align, Basis, Convention, Features, Masses, NormRule, Refit, RoundTo, Site, Size, Zeros
from ..core.modules import first_line
from ..core.progress import ProgressCallback, reporting
from ..core.scalars import check_flag
from ..core.text import mix_text
from ..errors import FusionError, OptionError
from ..features import Need
from ..fusing.budget import Budget
from ..fusing.pipeline import Pipeline, Reduced, needs_of
from ..fusing.prepare import traced
from ..fusing.related import of_one_base
from ..fusing.result import Fusion
from ..fusing.scoring import Evaluate, Scorer
from ..fusing.validation import check_models
from .cost import FORMS, Timer, operations
from .ensemble import OutputMix
from .grid import Combination, MethodConfig, Methods, combinations, method_configs, mixes_of
from .point import Point, Similarity, SpacePoint
from .result import Frontier
from .similarity import SimilarityReader

log = logging.getLogger(__name__)


@alone
def frontier(
    models: Sequence[nn.Module],
    example_inputs: Any = None,
    *,
    evaluate: Evaluate,
    output: Output | None = None,
    alphas: Sequence[float] | None = None,
    budgets: Sequence[float | Budget] | None = None,
    round_to: RoundTo = "auto",
    methods: Methods = ("partial-ot",),
    mixes: Sequence[Any] | None = None,
    size: Size = "dense",
    latency: bool = False,
    data: Iterable[Any] | None = None,
    refit: Refit = "auto",
    zeros: Zeros = "auto",
    features: Features = "auto",
    site: Site = "auto",
    similarity: Basis | None = None,
    align: Align = "fixed-point",
    masses: Masses = "equal",
    norm: NormRule = "auto",
    convention: Convention = "value",
    names: Sequence[str] | None = None,
    metric: str | None = None,
    details: bool = True,
    blueprint: Blueprint | None = None,
    check: bool = True,
    allow_shortfall: bool = False,
    seed: int = 0,
    progress: bool | ProgressCallback | None = None,
) -> Frontier:
    """Measure what fusing trades: the score against the size, between one model and the ensemble of all.

    The parents, the ensemble (the mixed outputs) and every combination of method, alpha and mix are evaluated. A
    combination that fails is kept with its reason, and Ctrl-C returns what has been measured (`complete` is False
    then). Nothing is chosen by the scores: every network that was measured is in the result.

    The order of the models, with the mixes in the same order: with two of equal widths nothing depends on it. With
    three or more, the parents, the ensemble, alpha=1, "average" and "magnitude" do not, nor does pruning by activations
    alone ("zip", "interpolate" and "magnitude+ot" with data). Every other method matches each model with the last, so
    which one is last makes a difference; the order of the others makes none. With unequal widths alpha=0 has the last
    model's. All this up to ties (channels that never fire are equal), and for methods that do not search at random as
    "cluster" does unless its solver is "ward".

    Args:
        models: two or more networks of one architecture, as for `fuse`.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs. May be left out where
            there is data, whose first two samples then serve.
        evaluate: a function of a model that gives a number, larger is better; or batches of (input, label), or of
            mappings with "labels", for accuracy. Score on images that were used neither for training nor as `data`.
        output: which entry of the model's output is the result, by name or position. Default: "logits" where there is
            one, else what looks like it, else all tensors; hidden states, caches and losses then do not count.
        alphas: the sizes, 0 (one model's) to 1 (the ensemble's). Methods that fuse every channel are measured at 0.
            Default: 0, 0.2, …, 1; none of these where there are budgets.
        budgets: sizes as budgets of `fuse`, such as (1.0, 1.3, pf.Budget(flops=1.5)), beside the alphas that are given.
        round_to: make every part of a space a multiple of so many channels, as for `fuse`.
        methods: methods of `fuse`; or a mapping from names to options of `fuse`, such as {"plain": {}, "refitted":
            {"refit": True}, "wide end": {"alpha": {"layer4*": 0.8}}}. One that says its alpha is measured at that.
        mixes: shares of the models, one per model, or for two models the share of the first. Default: equal shares.
        size: which parameters are the size: "dense" (the module that `fuse` returns) or "effective" (without the zero
            blocks: what it holds as blocks and in files; refitting then keeps them unless `zeros` says otherwise).
        latency: also time every network on the example inputs: as it is, as blocks, and with blocks where these are
            faster. Calls take turns with the last model's, for half a second or more at each size.
        data: batches of inputs, of (input, label) pairs or of mappings of keyword inputs; labels are not used.
        refit: fit every fusion's layers to the models on the data, as for `fuse`.
        zeros: whether refitting may fill the zero blocks ("free") or not ("kept"), as for `fuse`.
        features: compare channels by "weights", "activations" or "both", as for `fuse`.
        site: take activations "pre" or "post" the activation function, as for `fuse`.
        similarity: compare channels ("permutation"), directions where they may be rotated ("rotation") or both
            ("auto", which tries them anew at every size), as for `fuse`.
        align: "fixed-point" or "greedy", as for `fuse`.
        masses: how much each channel counts in optimal transport, as for `fuse`; not together with budgets, and only
            for methods that take it.
        norm: statistics of batch norms, and of channels without a norm, as for `fuse`.
        convention: "value" or "mass", as for `fuse`.
        names: names of the models. Default: model A, model B, …
        metric: what `evaluate` measures, for tables and the page. Default: accuracy for batches, else score.
        details: read how similar the fused and the isolated channels are, for the page.
        blueprint: a traced blueprint of the last model, to save tracing it again.
        check: verify the blueprint when it is traced here, and at alpha=1 that the result is the ensemble.
        allow_shortfall: measure results that fall short of what was asked for, as for `fuse`; otherwise they are
            combinations that fail.
        seed: random seed of the checks, and of the search in generalised pruning.
        progress: True or False, or a function of a label and the fraction done; None shows a bar on terminals, and
            elsewhere writes to the log (logging, level INFO).
    """
    check, allow_shortfall = check_flag(check, "check"), check_flag(allow_shortfall, "allow_shortfall")
    latency, details = check_flag(latency, "latency"), check_flag(details, "details")
    check_models(models)
    inputs, batches = inputs_and_batches(example_inputs, data, models[-1], output)
    if size not in get_args(Size):
        raise OptionError(f"size={size!r} is not known: choose one of {', '.join(get_args(Size))}")
    if zeros == "auto" and size == "effective":
        zeros = "kept"
    shared: dict[str, Any] = {
        "features": features,
        "site": site,
        "similarity": similarity,
        "align": align,
        "masses": masses,
        "norm": norm,
        "convention": convention,
        "round_to": round_to,
    }
    shared |= {"refit": refit, "zeros": zeros}
    known = {"seed": seed, "has_data": batches is not None, "related": of_one_base(models)}
    configs = method_configs(methods, alphas, budgets, shared, **known)
    shares = mixes_of(mixes, len(models))
    scorer = Scorer.of(evaluate, inputs.signature, metric)
    called = _names(names, len(models))
    needs = {need for config in configs for need in needs_of(config.recipe, len(models))}
    if details and batches is not None:
        needs |= {Need(config.recipe.site) for config in configs}
    with reporting(progress) as report:
        if blueprint is None:
            report("tracing", 0.0)
            blueprint = traced(models[-1], inputs, check=check, seed=seed)
        sizes = [alpha for config in configs for alpha in config.alphas if alpha is not None]
        pipeline = Pipeline(models, inputs, blueprint, batches, report, check, allow_shortfall, needs, sizes)
        reader = SimilarityReader(pipeline.sources) if details else None
        timer = Timer(models[-1], inputs) if latency else None
        run = _Run(pipeline, scorer, reader, size, timer)
        complete = run.measure(called, shares, list(combinations(configs, shares)))
    return Frontier(tuple(run.points), called, scorer.name, complete, size, run.samples)


def _names(names: Sequence[str] | None, models: int) -> tuple[str, ...]:
    if names is None:
        letters = string.ascii_uppercase if models <= 26 else [str(k + 1) for k in range(models)]
        return tuple(f"model {letters[k]}" for k in range(models))
    found = tuple(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else ()
    if len(found) != models or len(set(found)) != models:
        raise OptionError(f"names={names!r} must be {models} different names, one for each model")
    return found


@dataclass
class _Run:
    """The measuring of one frontier.

    Attributes:
        pipeline: makes the fusions.
        scorer: evaluates them.
        reader: reads how similar the fused and the isolated channels are.
        size: which parameters are the size.
        timer: measures latencies, where that was asked for.
        samples: how many samples a network is scored on, where that is known.
        points: what has been measured so far.
        matched: the method and the alpha that were matched last, and the result.
    """

    pipeline: Pipeline
    scorer: Scorer
    reader: SimilarityReader | None
    size: Size
    timer: Timer | None = None
    samples: int | None = None
    points: list[Point] = field(default_factory=list)
    matched: tuple[MethodConfig, float | None, Reduced] | None = None

    def measure(self, names: Sequence[str], mixes: Sequence[tuple[float, ...]], grid: Sequence[Combination]) -> bool:
        """Parents, ensembles, then the grid. False where the user stopped it; nothing measured at all is an error."""
        total, report = len(names) + len(mixes) + len(grid), self.pipeline.progress
        try:
            for k, name in enumerate(names):
                report(f"measuring {name}", len(self.points) / total)
                self.points.append(self._parent(k, name))
            for mix in mixes:
                report(f"measuring the ensemble {mix_text(mix)}", len(self.points) / total)
                self.points.append(self._ensemble(mix))
            for combination in grid:
                self.points.append(self._fused(combination, len(self.points), total))
        except KeyboardInterrupt:
            if not self.points:
                raise
            log.info("interrupted after %d of %d networks", len(self.points), total)
            return False
        return True

    def _parent(self, k: int, name: str) -> Point:
        """A parent that cannot be measured ends everything: the fault is in `evaluate`, not in a combination."""
        model = self.pipeline.models[k]
        try:
            found = self.scorer.score(model)
        except FusionError:
            raise
        except Exception as error:
            raise OptionError(f"evaluate failed on {name}: {first_line(error)}") from error
        self.samples = None if found.samples is None else len(found.samples)
        mix = tuple(float(k == m) for m in range(len(self.pipeline.models)))
        point = self._counted(Point("parent", name, None, mix, found.value), model)
        if self.timer is None:
            return point
        own = model is self.pipeline.models[-1]
        return replace(point, latency=dict.fromkeys(FORMS, 1.0) if own else self.timer.module(("parent", k), model))

    def _ensemble(self, mix: tuple[float, ...]) -> Point:
        model = OutputMix(self.pipeline.models, mix)
        point = self._counted(Point("ensemble", "ensemble", None, mix), model)
        if self.timer is not None:
            active = tuple(share > 0 for share in mix)
            point = replace(point, latency=self.timer.module(("ensemble", active), model))
        try:
            return replace(point, score=self.scorer(model))
        except Exception as error:
            return _failed(point, error)

    def _counted(self, point: Point, model: nn.Module) -> Point:
        size = sum(p.numel() for p in model.parameters())
        single = sum(p.numel() for p in self.pipeline.models[-1].parameters())
        flops = operations(model, self.pipeline.inputs)
        return replace(point, dense=size, effective=size, parameters=size, ratio=size / single, flops=flops)

    def _fused(self, combination: Combination, number: int, total: int) -> Point:
        alpha = combination.single_alpha
        bound = None if combination.config.budget is None else str(combination.config.budget)
        size = f" budget {bound}" if bound is not None else "" if alpha is None else f" alpha {alpha:g}"
        label = f"{combination.config.name}{size} mix {mix_text(combination.mix)}"

        def report(step: str, done: float) -> None:
            self.pipeline.progress(f"{label}: {step}", (number + 0.9 * done) / total)

        point = Point("fused", combination.config.name, alpha, combination.mix, budget=bound)
        report("fusing", 0.0)
        try:
            started = time.perf_counter()
            fusion = self._fuse(combination, self.pipeline.reporting_to(report))
            point = replace(point, seconds=time.perf_counter() - started, **self._described(fusion))
            report("measuring", 1.0)
            if self.timer is not None:
                shape = point.method, bound, alpha, point.dense, point.effective
                point = replace(point, latency=self.timer.fused(shape, fusion))
            return replace(point, score=self.scorer(fusion.model))
        except Exception as error:
            log.warning("%s failed: %s", label, first_line(error))
            return _failed(point, error)

    def _fuse(self, combination: Combination, pipeline: Pipeline) -> Fusion:
        """The fusion that `fuse` gives; mixes of one config and size share what was matched, where the mix plays no
        part in it."""
        config, alpha, recipe = combination.config, combination.alpha, combination.recipe
        if self.matched and self.matched[:2] == (config, alpha) and recipe.pruning is None:
            return pipeline.remix(self.matched[2], combination.mix)
        reduced = pipeline.reduce(recipe, config.budget, exact=config.exact)
        if recipe.pruning is not None and not reduced.fusion.plan.converged:
            raise KeyboardInterrupt  # a search that was stopped early is not what was asked for
        self.matched = config, alpha, reduced
        return reduced.fusion

    def _described(self, fusion: Fusion) -> dict[str, Any]:
        summary, count = fusion.summary(), fusion.count
        similarities = {}
        if self.reader is not None and self.matched is not None:
            reduced = self.matched[2]
            aligner = reduced.pipeline.aligner(fusion.recipe) if fusion.recipe.pruning is None else None
            similarities = self.reader.of(reduced.pipeline.sources).read(fusion, reduced.template, aligner)
        return {
            "dense": count.dense,
            "effective": count.effective,
            "parameters": count.dense if self.size == "dense" else count.effective,
            "ratio": count.ratio if self.size == "dense" else count.effective_ratio,
            "flops": operations(fusion.model, self.pipeline.inputs),
            "features": fusion.recipe.features,
            "cost": summary.cost,
            "sweeps": summary.sweeps,
            "converged": summary.converged,
            "spaces": tuple(SpacePoint(s, similarities.get(s.name) or Similarity.unknown()) for s in summary.spaces),
        }


def _failed(point: Point, error: Exception) -> Point:
    said = " ".join(str(error).split()) if isinstance(error, FusionError) else first_line(error)
    return replace(point, score=None, error=said or type(error).__name__)
