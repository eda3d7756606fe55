"""What every space loses at every size: the paths along which a budget is spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...blueprint import Blueprint
from ...core.arrays import Floats
from ...features import UnionHeads, UnionSpace
from ...kernels import Coupling, merge
from ...solvers import couple_blocks, couplings
from ..align import Aligner
from ..align.alignment import matched_cost
from ..methods import Cluster, Interpolate, PruningMethod, Search
from ..options import Recipe
from ..pruning import UnionPruner
from ..sources import Sources
from .sizes import Support

STEPS = 20  # sizes that are tried of every space
POWER = 1.5
WORST = 0.999  # a relative loss that counts as everything

Spaces = tuple[str, ...]  # spaces whose widths change together


@dataclass(frozen=True)
class Path:
    """The sizes of one space, or of spaces whose widths change together, smallest first.

    Attributes:
        fractions: (t,) alpha, below 0 where it is smaller than the last model, or for one model what is kept.
        losses: (t,) what is lost, 0 for nothing; never growing.
        supports: (t,) space → which models write how many channels.
    """

    fractions: tuple[float, ...]
    losses: tuple[float, ...]
    supports: tuple[Mapping[str, Support], ...]

    def nearest(self, fraction: float) -> int:
        """Where the fraction is nearest to a given one."""
        return min(range(len(self.fractions)), key=lambda t: abs(self.fractions[t] - fraction))

    def corners(self) -> list[int]:
        """Where the lower convex hull of the losses over the channels bends: the sizes worth stopping at."""
        widths = [sum(n for support in per_space.values() for n in support.values()) for per_space in self.supports]
        hull: list[int] = []
        for t in range(len(widths)):
            while len(hull) > 1 and _above(hull[-2], hull[-1], t, widths, self.losses):
                hull.pop()
            hull.append(t)
        return hull


def _above(a: int, b: int, c: int, x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether point b lies on or above the line from a to c."""
    return (y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a])


# What a set of spaces that change together loses, relative to all there is to lose, and who writes their channels.
State = tuple[float, Mapping[str, Support]]


def coupling_paths(sources: Sources, aligner: Aligner, recipe: Recipe) -> dict[Spaces, Path]:
    """Elastic spaces → their path under partial transport: the cost of what is fused, the others fused wholly."""
    costs = aligner.full_costs(sources.names("elastic"))
    paths = {}
    for group in sources.blueprint.groups:
        alphas = sources.grids(recipe.round_to)[group[0]].alphas(STEPS)
        parts = [_coupled(sources, part, costs, alphas, recipe) for part in _parts(sources.blueprint, group)]
        paths[group] = _path(alphas, _together(parts), _readers(sources.blueprint, group))
    return paths


def pruning_paths(pruner: UnionPruner, recipe: Recipe) -> dict[Spaces, Path]:
    """Elastic spaces → their path under generalised pruning; Ward's clusterings and selections without swaps stand for
    better ones."""
    quick = pruner.method
    if isinstance(quick, Cluster):
        quick = Cluster("ward")
    elif isinstance(quick, Interpolate):
        quick = replace(quick, swaps=False)
    single = recipe.keep is not None
    blueprint, spaces = pruner.sources.blueprint, pruner.spaces(recipe.mix)
    paths = {}
    for group in blueprint.groups:
        grid = pruner.sources.grids(recipe.round_to)[group[0]]
        kept, more = grid.kept(STEPS), grid.alphas(STEPS)
        fractions = kept if single else [f - 1 for f in kept[:-1]] + more
        parts = []
        for name, *_ in _parts(blueprint, group):
            space = spaces[name]
            widths = np.bincount(space.model, minlength=len(pruner.sources.models)).tolist()
            targets = [replace(grid, widths=tuple(widths)).steps(f, keep=single) for f in fractions]
            parts.append(list(_pruned(space, targets, quick, len(widths), recipe.seed)))
        paths[group] = _path(fractions, _together(parts), _readers(blueprint, group))
    return paths


def _parts(blueprint: Blueprint, group: Spaces) -> list[Spaces]:
    """The spaces of a group, those of a bundle as one."""
    found: dict[str, list[str]] = {}
    for name in group:
        found.setdefault(blueprint[name].bundle or name, []).append(name)
    return [tuple(names) for names in found.values()]


def _together(parts: Sequence[Sequence[State]]) -> list[State]:
    """The states of spaces that change together: the mean of their losses."""
    found: list[State] = []
    for states in zip(*parts, strict=True):
        supports = {name: support for _, per_space in states for name, support in per_space.items()}
        found.append((float(np.mean([lost for lost, _ in states])), supports))
    return found


def _pruned(
    space: UnionSpace, targets: Sequence[int], method: PruningMethod, models: int, seed: int
) -> Iterator[State]:
    """Loss and support at every number of channels or heads; the loss of keeping one alone is all there is to lose."""
    everything = method.choose(space, 1, Search(seed)).cost if space.width > 1 else 0.0
    sizes = {space.name: 1}
    if isinstance(space, UnionHeads):
        sizes = {s.name: len(b) // space.width for s, b in zip(space.spaces, space.blocks, strict=True)}
    for k in targets:
        lost, table, dense = 0.0, np.eye(models, dtype=bool)[space.model], False
        if k < space.width:
            choice = method.choose(space, k, Search(seed))
            lost, dense = choice.cost / (everything or 1.0), choice.ridge is not None
            table = np.zeros((k, models), bool)
            table[choice.target, space.model[choice.source]] = True
        support = support_of(table)
        yield (
            lost,
            {n: Support.of({m: c * size for m, c in support.items()}, dense=dense) for n, size in sizes.items()},
        )


def _coupled(
    sources: Sources, names: Spaces, costs: Sequence[Mapping[str, Floats]], alphas: Sequence[float], recipe: Recipe
) -> list[State]:
    """Loss and support of a space or bundle at every isolated fraction; the loss of a random matching is all there is
    to lose."""
    per_model = [[cost[s] for s in names] for cost in costs]
    everything = sum(c.mean() * len(c) for parts in per_model for c in parts) or 1.0
    solved = [_solved(sources, k, names, parts, alphas) for k, parts in enumerate(per_model)]
    found: list[State] = []
    for number, alpha in enumerate(alphas):
        lost, supports = 0.0, dict[str, Support]()
        for s, name in enumerate(names):
            matched = [by_alpha[number][s] for by_alpha in solved]
            matched = [c.isolated() for c in matched] if alpha == 1.0 else matched
            lost += sum(matched_cost(parts[s], c) for parts, c in zip(per_model, matched, strict=True))
            supports[name] = support_of(merge(matched, recipe.mix, recipe.convention).support())
        found.append((lost / everything, supports))
    return found


def _solved(
    sources: Sources, k: int, names: Spaces, costs: Sequence[Floats], alphas: Sequence[float]
) -> list[list[Coupling]]:
    """For every isolated fraction, the couplings of model k with the last one in the spaces of one part."""
    blocks = [(sources.blueprints[k][s].blocks, sources.blueprint[s].blocks) for s in names]
    pairs = [(ours, theirs) for ours, theirs in blocks if ours is not None and theirs is not None]
    if pairs:
        return [couple_blocks(costs, pairs, alpha) for alpha in alphas]
    return [[c] for c in couplings(costs[0], alphas, rest=False)]


def _path(fractions: Sequence[float], states: Sequence[State], readers: int) -> Path:
    """The path of a space from its relative losses.

    What one layer loses, the next cannot give back: kept parts multiply, so losses add as logarithms, and every layer
    that reads a space has its loss. The power above one keeps single layers from becoming bottlenecks; both were chosen
    on held-out images (docs/how-it-works.md).
    """
    relative = np.minimum([lost for lost, _ in states], WORST)
    losses = readers * (-np.log1p(-relative)) ** POWER
    losses = np.maximum.accumulate(losses[::-1])[::-1]  # rounding may let one grow
    return Path(tuple(fractions), tuple(losses.tolist()), tuple(s for _, s in states))


def _readers(blueprint: Blueprint, group: Spaces) -> int:
    """How many weights read some space of a group, one at least: many, where it is a residual stream."""
    return max(1, len({b.parameter for name in group for b in blueprint[name].bindings if b.role == "reads"}))


def support_of(table: np.ndarray, *, dense: bool = False) -> Support:
    """(channels × models), who writes what → how many channels every set of models writes."""
    bits = table @ (1 << np.arange(table.shape[1]))
    values, counts = np.unique(bits, return_counts=True)
    return Support.of(dict(zip(values.tolist(), counts.tolist(), strict=True)), dense=dense)
