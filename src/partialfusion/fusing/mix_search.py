"""mix="auto": the shares of the models that score best, on one template: nothing is matched twice."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..core.literals import Mix
from ..core.text import mix_text
from ..errors import DataError
from .mixing import Mixing, MixPoint
from .pipeline import Pipeline, Reduced
from .result import Fusion
from .scoring import Score, Scorer

DIVISIONS = {2: 10, 3: 4}  # steps of the coarse grid by the number of models; two for more models
FINEST = 0.025  # smallest step of the refinement

log = logging.getLogger(__name__)


def best_mix(pipeline: Pipeline, reduced: Reduced, scorer: Scorer) -> Fusion:
    """The fusion with the shares that score best; every mix is measured as it would be returned."""
    equal = reduced.fusion.recipe.mix
    total = len(coarse(len(equal))) + 2 * len(list(around(equal, FINEST)))
    scores: dict[Mix, Score] = {}

    def at(mix: Mix) -> Fusion:
        if mix == equal:
            return reduced.fusion

        def report(step: str, done: float) -> None:
            pipeline.progress(f"mix {mix_text(mix)}: {step}", min((len(scores) + done) / total, 1.0))

        return pipeline.reporting_to(report).remix(reduced, mix)

    def measure(mix: Mix) -> float:
        if mix not in scores:
            pipeline.progress(f"mix {mix_text(mix)}", min(len(scores) / total, 1.0))
            scores[mix] = scorer.score(at(mix).model)
            _check_order(scores[mix], scores[equal])
        return scores[mix].value

    search(measure, equal)
    mixing = _concluded(scores, equal, scorer.name)
    if mixing.clear is False:
        log.warning(mixing.warning())
    return replace(at(mixing.mix), mixing=mixing)


def _check_order(score: Score, first: Score) -> None:
    """Mixes are compared sample by sample, which takes the same samples in the same order."""
    if score.order != first.order:
        raise DataError(
            "the labels of evaluate differ from one pass to the next: pass batches in a fixed order, such as a "
            "loader with shuffle=False"
        )


def search(measure: Callable[[Mix], float], equal: Mix) -> None:
    """Measure a coarse grid, then around its best, where shares move between two models by ever smaller steps."""
    grid = coarse(len(equal))
    best = max([equal, *grid], key=measure)
    step = 0.5 / DIVISIONS.get(len(equal), 2)
    while step >= FINEST * (1 - 1e-9):
        best = max([best, *around(best, step)], key=measure)
        step /= 2


def coarse(models: int) -> list[Mix]:
    """All mixes of shares that are multiples of one over the divisions."""
    parts = DIVISIONS.get(models, 2)
    cuts = itertools.combinations_with_replacement(range(parts + 1), models - 1)
    ends = [(0, *cut, parts) for cut in cuts]
    return [tuple((b - a) / parts for a, b in itertools.pairwise(end)) for end in ends]


def around(mix: Mix, step: float) -> Iterator[Mix]:
    """Mixes in which one model gives a step of its share, or all it has, to another."""
    for giver, taker in itertools.permutations(range(len(mix)), 2):
        moved = min(step, mix[giver])
        if moved > 0:
            shares = [round(share + moved * ((m == taker) - (m == giver)), 9) for m, share in enumerate(mix)]
            yield tuple(share / sum(shares) for share in shares)


def _concluded(scores: dict[Mix, Score], equal: Mix, metric: str) -> Mixing:
    """The curve, and what it says."""
    best = max(scores, key=lambda mix: (scores[mix].value, -math.dist(mix, equal)))
    points = tuple(_point(mix, scores[mix], scores[best]) for mix in sorted(scores))
    samples = scores[best].samples
    grid = coarse(len(equal))
    alike = sum(p.alike for p in points if p.mix in grid) / len(grid)
    return Mixing(points, best, metric, None if samples is None else len(samples), alike)


def _point(mix: Mix, score: Score, best: Score) -> MixPoint:
    behind = best.value - score.value
    if best.samples is None or score.samples is None or len(best.samples) != len(score.samples):
        return MixPoint(mix, score.value, behind)
    apart = best.samples - score.samples
    spread = float(apart.std()) if len(apart) > 1 else 0.0
    return MixPoint(mix, score.value, behind, spread / math.sqrt(len(apart)))
