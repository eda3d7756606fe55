"""How alike the channels are that a fusion puts together, and those it leaves apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from torch import nn

from ..core.arrays import Bools, Floats, Ints
from ..core.batches import Batches
from ..core.modules import named_tensors
from ..features import Side, UnionFeatures, WeightCosts, activation_costs
from ..fusing.result import Fusion
from ..kernels import Coupling, KernelPair, Reduction
from .point import Likeness
from .ways import matches_pairs

Costs = Mapping[str, Floats]


class PairReader:
    """Reads fusions of the same models; activations are recorded once.

    Args:
        models: the models.
        batches: data, or nothing to compare channels by their weights.
    """

    def __init__(self, models: Sequence[nn.Module], batches: Batches | None) -> None:
        self.models, self.batches = models, batches
        self._known: dict[str, list[dict[str, Floats]]] = {}

    def read(self, fusion: Fusion) -> dict[str, Likeness]:
        """Space → how alike its channels are, for every space that is not rigid."""
        free = [s.name for s in fusion.blueprint if s.kind != "rigid"]
        if not any(fusion.plan[s.name].fused for s in fusion.blueprint if s.kind == "elastic"):
            return {}  # nothing was matched, so nothing is known of who corresponds to whom
        measured = self._measured(fusion, free)
        sides = [Side(b, named_tensors(m)) for b, m in zip(fusion.blueprints, self.models, strict=True)]
        coupled = matches_pairs(fusion.recipe.method)
        costs = [_costs(fusion, sides, k, free, own) if coupled else {} for k, own in enumerate(measured)]
        similar = _Similarity(fusion, sides, measured)
        return {space: _likeness(fusion.plan[space], space, costs, similar, coupled) for space in free}

    def _measured(self, fusion: Fusion, spaces: Sequence[str]) -> list[dict[str, Floats]]:
        """For every model but the last, space → (n × m) of one minus the correlation, where there is data."""
        if self.batches is None:
            return [{} for _ in self.models[:-1]]
        site = fusion.recipe.site
        if site not in self._known:
            self._known[site] = activation_costs(self.models, fusion.blueprints, self.batches, spaces, site)
        return self._known[site]


class _Similarity:
    """(n × m) similarities of the channels of a model and the last one."""

    def __init__(self, fusion: Fusion, sides: Sequence[Side], measured: Sequence[Costs]) -> None:
        worlds = [{name: r.world[k] for name, r in fusion.plan.items()} for k in range(len(sides))]
        self.measured = measured
        self.by_weights = UnionFeatures(sides, worlds, {}, "weights")
        self.widths = {s.name: [b[s.name].width for b in fusion.blueprints] for s in fusion.blueprint}
        self._known: tuple[str, Floats] | None = None

    def of(self, space: str, k: int) -> Floats:
        """Correlations of activations where they were seen, else cosines of weights in the last model's world."""
        if space in self.measured[k]:
            return 1.0 - self.measured[k][space]
        if self._known is None or self._known[0] != space:
            inner = self.by_weights.covariance(space)
            size = np.sqrt(np.maximum(np.diag(inner), 1e-30))
            self._known = space, inner / (size[:, None] * size[None, :])
        starts = np.cumsum([0, *self.widths[space]])
        return self._known[1][starts[k] : starts[k + 1], starts[-2] :]


def _likeness(
    reduction: Reduction, space: str, costs: Sequence[Costs], similar: _Similarity, coupled: bool
) -> Likeness:
    parts: dict[str, list[Floats]] = {"costs": [], "fused": [], "isolated": []}
    for k, own in enumerate(costs):
        similarity = similar.of(space, k)
        shared = _shared(reduction, k)
        parts["fused"].append(similarity[shared])
        if coupled:
            parts["costs"].append(own[space][shared])
            parts["isolated"].append(similarity[_apart(reduction, k, shared)])
    return Likeness(**{name: np.concatenate([np.empty(0), *found]) for name, found in parts.items()})


def _shared(reduction: Reduction, k: int) -> Bools:
    """(n × m) whether a channel of model k and one of the last model share a channel of the result."""
    ours, theirs = (_entered(reduction.pairs[model]) for model in (k, -1))
    return np.asarray((ours.T @ theirs).toarray() > 0)


def _entered(pair: KernelPair) -> Any:
    """(targets × sources), 1 where a source enters a target."""
    return csr_array((np.ones(len(pair.target)), (pair.target, pair.source)), (pair.targets, pair.sources))


def _apart(reduction: Reduction, k: int, shared: Bools) -> tuple[Ints, Ints]:
    """Channels of model k that share nothing with the last model, and their counterparts there."""
    world = reduction.world[k]
    alone = np.logical_not(np.any(shared, axis=1, keepdims=True)[world.source, 0])
    return world.source[alone], world.target[alone]


def _costs(fusion: Fusion, sides: Sequence[Side], k: int, free: Sequence[str], measured: Costs) -> Costs:
    """Space → (n × m) cost of every pair of channels, the other spaces as the plan has them."""
    recipe = fusion.recipe
    share = {name: _fused_share(reduction, k) for name, reduction in fusion.plan.items()}
    couplings = {name: _coupling(reduction, k, recipe.convention) for name, reduction in fusion.plan.items()}
    rebasin = recipe.method == "permutation"
    weights = WeightCosts(
        sides[k], sides[-1], share, convention=recipe.convention, normalise=not rebasin, vectors=rebasin
    )
    found = {}
    for space in free:
        seen = measured.get(space) if recipe.features != "weights" else None
        if recipe.features == "activations" and seen is not None:
            found[space] = seen
            continue
        found[space] = weights.cost(space, couplings)
        if recipe.features == "both" and seen is not None:
            found[space] = found[space] + seen / (seen.shape[1] * share[space])
    return found


def _fused_share(reduction: Reduction, k: int) -> float:
    """Of the last model's channels, the share that is fused; a space kept apart is matched as a whole."""
    return float(_shared(reduction, k).any(0).mean()) or 1.0


def _coupling(reduction: Reduction, k: int, convention: str) -> Coupling:
    """The coupling that a reduction was made of; a space kept apart is matched as a whole."""
    world = reduction.world[k]
    n, m = world.sources, world.targets
    mass = (world.read if convention == "value" else world.write) / n
    fused = _shared(reduction, k)[world.source, world.target]
    if not fused.any():
        fused = np.ones_like(fused)
    received = np.bincount(world.target, mass, m).astype(np.float64)
    return Coupling(world.source, world.target, mass, fused, np.full(n, 1.0 / n), received)
