"""What every space loses at every size: the paths along which a budget is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from ...blueprint import Blueprint
from ...core.arrays import Floats
from ...features import UnionSpace
from ...kernels import merge
from ...solvers import couple
from ..align import pair_costs
from ..align.alignment import matched_cost
from ..options import Recipe
from ..pruning import Cluster, PruningMethod
from ..pruning.methods import Search
from ..pruning.union import union_spaces
from .sizes import Support

STEPS = 20  # sizes that are tried of every space
POWER = 1.5
WORST = 0.999  # a relative loss that counts as everything


@dataclass(frozen=True)
class Path:
    """The sizes of one space, smallest first.

    Attributes:
        shares: (t,) alpha, or for one model the share that is kept.
        losses: (t,) what is lost, 0 for nothing; never growing.
        supports: (t,) which models write how many channels.
    """

    shares: tuple[float, ...]
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


def coupling_paths(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    batches: Iterable[tuple[Any, ...]] | None,
    recipe: Recipe,
) -> dict[str, Path]:
    """Elastic space → its path under partial transport: the cost of what is fused, the others fused wholly."""
    costs = pair_costs(models, blueprints, batches, recipe)
    paths = {}
    for space in blueprints[-1]:
        if space.kind == "elastic":
            own = [c[space.name] for c in costs]
            shares = _shares(space.width)
            paths[space.name] = _path(shares, [_coupled(own, share, recipe) for share in shares])
    return paths


def pruning_paths(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    batches: Iterable[tuple[Any, ...]] | None,
    recipe: Recipe,
    method: PruningMethod,
) -> dict[str, Path]:
    """Elastic space → its path under generalised pruning; clusterings are foretold by Ward's."""
    quick = Cluster("ward") if isinstance(method, Cluster) else method
    single = recipe.keep is not None
    paths = {}
    for name, space in union_spaces(models, blueprints, batches, recipe, method).items():
        *others, last = (b[name].width for b in blueprints)
        shares = _shares(last)[1:] if single else _shares(last)
        targets = [max(1, round(s * last)) if single else last + sum(round(s * n) for n in others) for s in shares]
        states = _pruned(space, targets, quick, len(blueprints), recipe.seed)
        paths[name] = _path(shares, [next(states) for _ in shares])
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


def _coupled(costs: Sequence[Floats], share: float, recipe: Recipe) -> tuple[float, Support]:
    """Loss and support at one isolated share; the loss of a random matching is all there is to lose."""
    everything = sum(c.mean() * len(c) for c in costs) or 1.0
    couplings = [couple(c, share) for c in costs]
    if share == 1.0:
        couplings = [c.isolated() for c in couplings]
    lost = sum(matched_cost(c, coupling) for c, coupling in zip(costs, couplings, strict=True))
    return lost / everything, support_of(merge(couplings, recipe.mix, recipe.convention).support())


def _path(shares: Sequence[float], states: Sequence[tuple[float, Support]]) -> Path:
    """The path of a space from its relative losses.

    What one layer loses, the next cannot give back: kept parts multiply, so losses add as logarithms. The power above
    one keeps single layers from becoming bottlenecks; it was chosen on held-out images (docs/how-it-works.md).
    """
    relative = np.minimum([lost for lost, _ in states], WORST)
    losses = (-np.log1p(-relative)) ** POWER
    losses = np.maximum.accumulate(losses[::-1])[::-1]  # rounding may let one grow
    return Path(tuple(shares), tuple(losses.tolist()), tuple(s for _, s in states))


def _shares(width: int) -> list[float]:
    """Shares of a space that make different numbers of channels, 0 to 1."""
    counts = sorted({round(width * k / STEPS) for k in range(STEPS + 1)})
    return [k / width for k in counts]


def support_of(table: np.ndarray) -> Support:
    """(channels × models), who writes what → how many channels every set of models writes."""
    bits = table @ (1 << np.arange(table.shape[1]))
    values, counts = np.unique(bits, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
