"""How similar the channels are that a fusion puts together, and those it leaves apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ..core.arrays import Bools, Floats, Ints
from ..core.literals import Site
from ..features import Need, UnionFeatures
from ..fusing.align import Aligner
from ..fusing.result import Fusion
from ..fusing.sources import Sources
from ..kernels import KernelPair, PlanTemplate, Reduction
from .point import Similarity

Costs = Mapping[str, Floats]


class SimilarityReader:
    """Reads fusions of the same models; correlations of activations are computed once.

    Args:
        sources: the models; without data, channels are compared by their weights.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._known: dict[Site, list[dict[str, Floats]]] = {}

    def of(self, sources: Sources) -> SimilarityReader:
        """The reader for models in these frames: itself, or another one where they were rotated."""
        return self if sources is self.sources else SimilarityReader(sources)

    def read(self, fusion: Fusion, template: PlanTemplate, aligner: Aligner | None) -> dict[str, Similarity]:
        """Space → how similar its channels are, for every space that is not rigid.

        Args:
            fusion: the result.
            template: what was matched with what.
            aligner: what matched it; None for methods that do not match pairs.
        """
        free = [s.name for s in fusion.blueprint if s.kind != "rigid"]
        if not any(fusion.plan[s.name].fused for s in fusion.blueprint if s.kind == "elastic"):
            return {}  # nothing was matched, so nothing is known of which channels correspond
        costs = None if aligner is None else aligner.costs(template)
        similar = _Similarities(fusion, self.sources, self._measured(fusion.recipe.site))
        return {space: _similarity(fusion.plan[space], space, costs, similar) for space in free}

    def _measured(self, site: Site) -> list[dict[str, Floats]]:
        """For every model but the last, space → (n × m) of one minus the correlation, where there is data."""
        others = range(len(self.sources.models) - 1)
        if self.sources.batches is None:
            return [{} for _ in others]
        if site not in self._known:
            found = self.sources.activations(Need(site))
            self._known[site] = [found.costs(site, k) for k in others]
        return self._known[site]


class _Similarities:
    """(n × m) similarities of the channels of a model and the last one."""

    def __init__(self, fusion: Fusion, sources: Sources, measured: Sequence[Costs]) -> None:
        frames = [{s: r.frames[k] for s, r in fusion.plan.items()} for k in range(len(sources.models))]
        self.measured = measured
        self.by_weights = UnionFeatures(sources.traced, frames, {}, "weights")
        self.widths = sources.widths
        self._known: tuple[str, Floats] | None = None

    def of(self, space: str, k: int) -> Floats:
        """Correlations of activations where they were seen, else cosines of weights in the reference frame."""
        if space in self.measured[k]:
            return 1.0 - self.measured[k][space]
        if self._known is None or self._known[0] != space:
            inner = self.by_weights.covariance(space)
            size = np.sqrt(np.maximum(np.diag(inner), 1e-30))
            self._known = space, inner / (size[:, None] * size[None, :])
        starts = np.cumsum([0, *self.widths[space]])
        return self._known[1][starts[k] : starts[k + 1], starts[-2] :]


def _similarity(reduction: Reduction, space: str, costs: Sequence[Costs] | None, similar: _Similarities) -> Similarity:
    parts: dict[str, list[Floats]] = {"costs": [], "fused": [], "isolated": []}
    for k in range(len(reduction.pairs) - 1):
        similarity = similar.of(space, k)
        shared = _shared(reduction, k)
        parts["fused"].append(similarity[shared])
        if costs is not None:
            parts["costs"].append(costs[k][space][shared])
            parts["isolated"].append(similarity[_isolated(reduction, k, shared)])
    return Similarity(**{name: np.concatenate([np.empty(0), *found]) for name, found in parts.items()})


def _shared(reduction: Reduction, k: int) -> Bools:
    """(n × m) whether a channel of model k and one of the last model share a channel of the result."""
    ours, theirs = (_entered(reduction.pairs[model]) for model in (k, -1))
    return np.asarray((ours.T @ theirs).toarray() > 0)


def _entered(pair: KernelPair) -> Any:
    """(targets × sources), 1 where a source enters a target."""
    return csr_array((np.ones(len(pair.target)), (pair.target, pair.source)), (pair.targets, pair.sources))


def _isolated(reduction: Reduction, k: int, shared: Bools) -> tuple[Ints, Ints]:
    """Channels of model k that share nothing with the last model, and their counterparts there."""
    frame = reduction.frames[k]
    alone = np.logical_not(np.any(shared, axis=1, keepdims=True)[frame.source, 0])
    return frame.source[alone], frame.target[alone]
