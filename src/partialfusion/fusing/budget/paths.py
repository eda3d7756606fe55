"""What every space loses at every size: the paths along which a budget is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Floats
from ...features import UnionSpace
from ...kernels import merge
from ...solvers import couplings
from ..align import Aligner
from ..align.alignment import matched_cost
from ..methods import Cluster, PruningMethod, Search
from ..options import Recipe
from ..pruning import UnionPruner
from ..sources import Sources
from .sizes import Support

STEPS = 20  # sizes that are tried of every space
POWER = 1.5
WORST = 0.999  # a relative loss that counts as everything


@dataclass(frozen=True)
class Path:
    """The sizes of one space, smallest first.

    Attributes:
        fractions: (t,) alpha, or for one model the fraction that is kept.
        losses: (t,) what is lost, 0 for nothing; never growing.
        supports: (t,) which models write how many channels.
    """

    fractions: tuple[float, ...]
    losses: tuple[float, ...]
    supports: tuple[Support, ...]

    def corners(self) -> list[int]:
        """Where the lower convex hull of the losses over the channels bends: the sizes worth stopping at."""
        widths = [sum(s.values()) for s in self.supports]
        hull: list[int] = []
        for t in range(len(widths)):
            while len(hull) > 1 and _above(hull[-2], hull[-1], t, widths, self.losses):
                hull.pop()
            hull.append(t)
        return hull


def _above(a: int, b: int, c: int, x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether point b lies on or above the line from a to c."""
    return (y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a])


def coupling_paths(sources: Sources, aligner: Aligner, recipe: Recipe) -> dict[str, Path]:
    """Elastic space → its path under partial transport: the cost of what is fused, the others fused wholly."""
    elastic = sources.names("elastic")
    costs = aligner.full_costs(elastic)
    paths = {}
    for space in elastic:
        alphas = _fractions(sources.widths[space][-1])
        paths[space] = _path(alphas, _coupled([c[space] for c in costs], alphas, recipe))
    return paths


def pruning_paths(pruner: UnionPruner, recipe: Recipe) -> dict[str, Path]:
    """Elastic space → its path under generalised pruning; Ward's clusterings stand for better ones."""
    quick = Cluster("ward") if isinstance(pruner.method, Cluster) else pruner.method
    single = recipe.keep is not None
    paths = {}
    for name, space in pruner.spaces(recipe.mix).items():
        *others, last = pruner.sources.widths[name]
        fractions = _fractions(last)[1:] if single else _fractions(last)
        targets = [max(1, round(f * last)) if single else last + sum(round(f * n) for n in others) for f in fractions]
        paths[name] = _path(fractions, list(_pruned(space, targets, quick, len(others) + 1, recipe.seed)))
    return paths


def _pruned(
    space: UnionSpace, targets: Sequence[int], method: PruningMethod, models: int, seed: int
) -> Iterator[tuple[float, Support]]:
    """Loss and support at every number of channels; the loss of keeping one channel alone is all there is to lose."""
    everything = method.choose(space, 1, Search(seed)).cost if space.width > 1 else 0.0
    for k in targets:
        if k >= space.width:
            yield 0.0, support_of(np.eye(models, dtype=bool)[space.model])
            continue
        choice = method.choose(space, k, Search(seed))
        table = np.zeros((k, models), bool)
        table[choice.target, space.model[choice.source]] = True
        yield choice.cost / (everything or 1.0), support_of(table)


def _coupled(costs: Sequence[Floats], alphas: Sequence[float], recipe: Recipe) -> list[tuple[float, Support]]:
    """Loss and support at every isolated fraction; the loss of a random matching is all there is to lose."""
    everything = sum(c.mean() * len(c) for c in costs) or 1.0
    found = []
    for alpha, *per_model in zip(alphas, *(couplings(c, alphas, rest=False) for c in costs), strict=True):
        matched = [c.isolated() for c in per_model] if alpha == 1.0 else per_model
        lost = sum(matched_cost(c, coupling) for c, coupling in zip(costs, matched, strict=True))
        found.append((lost / everything, support_of(merge(matched, recipe.mix, recipe.convention).support())))
    return found


def _path(fractions: Sequence[float], states: Sequence[tuple[float, Support]]) -> Path:
    """The path of a space from its relative losses.

    What one layer loses, the next cannot give back: kept parts multiply, so losses add as logarithms. The power above
    one keeps single layers from becoming bottlenecks; it was chosen on held-out images (docs/how-it-works.md).
    """
    relative = np.minimum([lost for lost, _ in states], WORST)
    losses = (-np.log1p(-relative)) ** POWER
    losses = np.maximum.accumulate(losses[::-1])[::-1]  # rounding may let one grow
    return Path(tuple(fractions), tuple(losses.tolist()), tuple(s for _, s in states))


def _fractions(width: int) -> list[float]:
    """Fractions of a space that make different numbers of channels, 0 to 1."""
    counts = sorted({round(width * k / STEPS) for k in range(STEPS + 1)})
    return [k / width for k in counts]


def support_of(table: np.ndarray) -> Support:
    """(channels × models), who writes what → how many channels every set of models writes."""
    bits = table @ (1 << np.arange(table.shape[1]))
    values, counts = np.unique(bits, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
