"""The channels of all models together, as generalised pruning sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor, nn

from ..blueprint import Role
from ..blueprint.spaces import owner
from ..core.arrays import Floats, Ints
from ..core.compute import moved
from ..kernels import Choice, Interpolation, KernelPair, ReadMap, Shift
from ..solvers import Selection, assignment, nearest_kept, read_map, select, select_blocks, swap
from .activations import Place, finite
from .moments import Moments
from .readers import Reader, background, computed_alike, dense_bindings, measured, pooled
from .traced import TracedModel
from .weights import describing_parameters, slices

TOLERANCE = 1e-5  # moments are summed in single precision: a residual below this fraction of a channel is none


@dataclass(frozen=True)
class UnionFeatures:
    """What is known of the channels of the union.

    Attributes:
        sources: the models.
        frames: per model, space → its kernel pair into the reference frame, in which weights are compared.
        moments: space → moments of the union's activations, one for each place where the space is seen.
        kind: "weights", "activations" or "both"; spaces whose activations are not seen go by their weights.
        shifts: weight → what can take a constant in what it computes, where there is such a parameter.
        noise: like the moments, measured on noise; interpolation goes by it in what the data does not show.
        computed: like it, of what is computed before activation functions; interpolation goes by it in what neither
            data nor noise shows.
    """

    sources: Sequence[TracedModel]
    frames: Sequence[Mapping[str, KernelPair]]
    moments: Mapping[str, Mapping[Place, Moments]]
    kind: str
    shifts: Mapping[str, Shift] = field(default_factory=dict)
    noise: Mapping[str, Mapping[Place, Moments]] = field(default_factory=dict)
    computed: Mapping[str, Mapping[Place, Moments]] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> set[str]:
        return set(describing_parameters(self.sources[-1], vectors=False))

    def squared(self, space: str) -> Floats:
        """(n × n) squared distances of features; every place and every module counts the same. Computed once."""
        if space not in self._squared:
            self._squared[space] = self._squared_distances(space)
        return self._squared[space]

    @cached_property
    def _squared(self) -> dict[str, Floats]:
        return {}

    def _squared_distances(self, space: str) -> Floats:
        found = []
        if self._by_activations(space):
            found.append(
                [_relative(m.union_squared_distances(), m.union_power()) for m in self.moments[space].values()]
            )
        if self._by_weights(space):
            rows = self._rows(space)
            found.append([_relative(torch.cdist(x, x).square(), x.square().sum(1)) for x in rows])
        return self._summed(space, found)

    def covariance(self, space: str) -> Floats:
        """(n × n) covariances of activations, inner products of weights; all places and modules count the same."""
        found = []
        if self._by_activations(space):
            found.append([_relative(m.union_covariance(), m.union_variance()) for m in self.moments[space].values()])
        if self._by_weights(space):
            found.append([_relative(x @ x.T, x.square().sum(1)) for x in self._rows(space)])
        return self._summed(space, found)

    def norms(self, space: str, *, outgoing: bool) -> Floats:
        """(n,) norm of the weights that write (or read) the space: root mean square over modules, each on its scale."""
        rows = self._rows(space, roles=("reads",) if outgoing else ("writes", "scales"), placed=False)
        squares = [x.square().sum(1) for x in rows]
        if not squares:
            return np.ones(self._width(space))
        return torch.stack([_relative(s, s) for s in squares]).mean(0).sqrt().cpu().numpy()

    def deviations(self, space: str) -> Floats:
        """(n,) root mean square over the places of the activations' standard deviations, each on its mean scale."""
        if space not in self.moments:
            return self.norms(space, outgoing=False)
        found = [m.union_variance() for m in self.moments[space].values()]
        return finite(torch.stack([_relative(v, v) for v in found]).mean(0).sqrt().cpu().numpy(), space)

    def readers(self, space: str) -> list[Reader]:
        """The weights that read a space and can read combinations of channels, with what they see. Computed once."""
        if space not in self._readers:
            self._readers[space] = self._reading(space)
        return self._readers[space]

    @cached_property
    def selections(self) -> dict[tuple[str, bytes], Selection]:
        """Space and masses of its channels → the largest selection that was asked for."""
        return {}

    @cached_property
    def _readers(self) -> dict[str, list[Reader]]:
        return {}

    def _reading(self, space: str) -> list[Reader]:
        seen = _by_weight(self.moments.get(space, {})) if self._by_activations(space) else {}
        noise = _by_weight(self.noise.get(space, {}))
        before = list(self.computed.get(space, {}).values())
        same = computed_alike(before) if before else None
        found: list[Reader] = []
        for binding in dense_bindings(self.sources[-1].blueprint[space]):
            if binding.parameter in seen and all(r.weight != binding.parameter for r in found):
                second, mean, samples = measured(seen[binding.parameter])
                norms = self._norms_of(space, binding.parameter)
                unseen = background(noise.get(binding.parameter, ()), second)
                found.append(Reader(binding.parameter, finite(second, space), mean, norms, samples, unseen, same))
        return found

    def _norms_of(self, space: str, weight: str) -> Floats:
        """(n,) norm of the entries with which one weight reads each channel."""
        bindings = self.sources[-1].blueprint[space].bindings
        numbers = [k for k, b in enumerate(bindings) if b.parameter == weight and b.role == "reads"]
        rows = [
            torch.cat([self._slices(m, space, k, False).norm(dim=1) for m in range(len(self.sources))]) for k in numbers
        ]
        return np.asarray(torch.stack(rows).square().sum(0).sqrt().cpu().numpy())

    def _summed(self, space: str, found: Sequence[Sequence[Tensor]]) -> Floats:
        """Activations and weights, the average of each."""
        parts = [np.mean([finite(d.cpu().numpy(), space) for d in kind], axis=0) for kind in found if kind]
        return np.sum(parts, axis=0) if parts else np.zeros((self._width(space),) * 2)

    def _by_activations(self, space: str) -> bool:
        return self.kind != "weights" and space in self.moments

    def _by_weights(self, space: str) -> bool:
        return self.kind != "activations" or space not in self.moments

    def _width(self, space: str) -> int:
        return sum(source.blueprint[space].width for source in self.sources)

    def _rows(
        self, space: str, roles: Sequence[Role] = ("writes", "reads", "scales"), *, placed: bool = True
    ) -> list[Tensor]:
        """For every module that writes or reads the space, (n × d) what it has for the channels of all models."""
        found: dict[tuple[str, bool], list[Tensor]] = {}
        for number, binding in enumerate(self.sources[-1].blueprint[space].bindings):
            if binding.parameter in self.parameters and binding.role in roles:
                rows = [self._slices(m, space, number, placed) for m in range(len(self.sources))]
                width = max(r.shape[1] for r in rows)
                padded = torch.cat([nn.functional.pad(r, (0, width - r.shape[1])) for r in rows])
                found.setdefault((owner(binding.parameter), binding.role == "reads"), []).append(padded)
        return [torch.cat(parts, 1) for parts in found.values()]

    def _slices(self, m: int, space: str, number: int, placed: bool) -> Tensor:
        """(n × d) of one binding in one model, the other axes in the reference frame where that is wanted."""
        source = self.sources[m]
        binding = source.blueprint[space].bindings[number]
        if placed and len(self.sources) > 1:
            mapped = source.mapped(binding.parameter, self.frames[m], keep=binding.axis)
            return moved(slices(mapped, binding)).double()
        return moved(slices(source.number(binding.parameter), binding)).double()


@dataclass(frozen=True)
class UnionSpace:
    """One space of the union.

    Attributes:
        name: name of the space.
        masses: (n,) the mass of each channel: the share of its model.
        model: (n,) the model of each channel.
        features: what is known of the channels.
    """

    name: str
    masses: Floats
    model: Ints
    features: UnionFeatures

    @property
    def width(self) -> int:
        return len(self.masses)

    @cached_property
    def squared(self) -> Floats:
        """(n × n) squared distances of the channels' features."""
        return self.features.squared(self.name)

    @cached_property
    def covariance(self) -> Floats:
        """(n × n) covariance of the channels."""
        return self.features.covariance(self.name)

    @cached_property
    def read(self) -> tuple[Floats, Floats] | None:
        """(n × n) moments of what is read of the space, and (n,) how much each channel counts: the norm of what reads
        it, times the share of its model. None where no weight can read combinations of channels."""
        readers = self.features.readers(self.name)
        if not readers:
            return None
        gram, weights = pooled(readers, {r.weight: r.weight in self.features.shifts for r in readers})
        weights = weights * self.masses
        return gram, weights if weights.any() else np.ones_like(weights)

    def selected(self, k: int, *, swaps: bool) -> Selection | None:
        """The k channels from which all can be computed best, None where no weight can read combinations of them.

        Without swaps, one selection serves all sizes.
        """
        if self.read is None:
            return None
        gram, weights = self.read
        known = self._ordered(k, lambda most: select(gram, most, weights, tolerance=TOLERANCE))
        return swap(gram, known, weights, tolerance=TOLERANCE) if swaps else known

    def _ordered(self, k: int, solve: Callable[[int], Selection]) -> Selection:
        """The first k of the largest selection; where that is too small, of one at least twice as large."""
        cache, key = self.features.selections, (self.name, self.masses.tobytes())
        known = cache.get(key)
        if known is None or len(known.kept) < k:
            known = cache[key] = solve(k if known is None else min(self.width, max(k, 2 * len(known.kept))))
        return known.first(k)

    def interpolation(self, kept: Ints, ridge: float) -> Interpolation | None:
        """How all channels are read from those kept, None where no weight can read combinations of channels."""
        if self.read is None:
            return None
        gram, _ = self.read
        maps: dict[str, ReadMap | None] = {}
        for reader in self.features.readers(self.name):
            shift = self.features.shifts.get(reader.weight)
            own = reader.gram(centred=shift is not None)
            matrix = read_map(own, kept, ridge=reader.ridge(ridge), tolerance=TOLERANCE)
            offset = None if shift is None else reader.mean - matrix @ reader.mean[kept]
            maps[reader.weight] = ReadMap(matrix, offset, shift)
        return Interpolation(nearest_kept(gram, kept), maps, gram.diagonal().copy(), gram.diagonal()[kept].copy())

    def importance(self, by: str) -> Floats:
        """(n,) by "incoming" or "outgoing" weights or by the deviation of the "activation", times the model's share."""
        if by == "activation":
            return self.masses * self.features.deviations(self.name)
        return self.masses * self.features.norms(self.name, outgoing=by == "outgoing")


@dataclass(frozen=True)
class UnionHeads(UnionSpace):
    """The heads of the union in a bundle of spaces, in place of its channels.

    Two heads are compared by their channels, each with the one that suits it best, over all spaces of the bundle.

    Attributes:
        spaces: the spaces of the bundle.
        blocks: per space, (channels of the union,) the head of each channel, 0 … n − 1 over all models.
    """

    spaces: tuple[UnionSpace, ...]
    blocks: tuple[Ints, ...]

    @cached_property
    def squared(self) -> Floats:
        """(n × n) mean squared distances of the channels of two heads, matched as well as they can be."""
        return self._matched(lambda space: space.squared)

    @cached_property
    def covariance(self) -> Floats:
        """(n × n) mean covariances of the channels of two heads, matched as well as they can be."""
        return -self._matched(lambda space: -space.covariance)

    def selected(self, k: int, *, swaps: bool) -> Selection | None:
        """The k heads from which all can be computed best: their channels in the spaces that weights read."""
        read = [(s.read, b) for s, b in self._pairs() if s.read is not None]
        if not read:
            return None
        gram = block_diag(*(moments for (moments, _), _ in read))
        weights = np.concatenate([w for (_, w), _ in read])
        blocks = np.concatenate([b for _, b in read])
        return self._ordered(k, lambda most: select_blocks(gram, blocks, most, weights, tolerance=TOLERANCE))

    def importance(self, by: str) -> Floats:
        """(n,) the root mean square of the importances of a head's channels, over the spaces."""
        found = [np.bincount(b, s.importance(by) ** 2) / np.bincount(b) for s, b in self._pairs()]
        return np.sqrt(np.mean(found, axis=0))

    def channels(self, choice: Choice) -> dict[str, Choice]:
        """Space → what becomes of its channels, from what becomes of the heads.

        In a head that is made of several, channels are matched with those of the heaviest.
        """
        found = {}
        for number, (space, blocks) in enumerate(self._pairs()):
            members = [np.flatnonzero(blocks == h) for h in range(self.width)]
            size = len(members[0])
            target, source, mass = [], [], []
            for t in range(choice.targets):
                entries = np.flatnonzero(choice.target == t)
                first = members[choice.source[entries[np.argmax(choice.mass[entries])]]]
                for e in entries:
                    head = members[choice.source[e]]
                    order = assignment(space.squared[np.ix_(head, first)])[1] if head is not first else np.arange(size)
                    target.append(t * size + order)
                    source.append(head)
                    mass.append(np.full(size, choice.mass[e]))
            found[space.name] = replace(
                choice,
                target=np.concatenate(target),
                source=np.concatenate(source),
                mass=np.concatenate(mass),
                targets=choice.targets * size,
                cost=choice.cost if number == 0 else 0.0,
            )
        return found

    def _pairs(self) -> list[tuple[UnionSpace, Ints]]:
        return list(zip(self.spaces, self.blocks, strict=True))

    def _matched(self, cost_of: Callable[[UnionSpace], Floats]) -> Floats:
        """(n × n) the mean cost of the cheapest matching of the channels of two heads, averaged over the spaces."""
        total = np.zeros((self.width, self.width))
        for space, blocks in self._pairs():
            cost = cost_of(space)
            members = [np.flatnonzero(blocks == h) for h in range(self.width)]
            for i, j in combinations_with_replacement(range(self.width), 2):
                part = cost[np.ix_(members[i], members[j])]
                lost = part.diagonal() if i == j else part[assignment(part)]
                total[i, j] = total[j, i] = total[i, j] + lost.mean() / len(self.spaces)
        return total


def _by_weight(places: Mapping[Place, Moments]) -> dict[str, list[Moments]]:
    """Weight → the moments of what it reads in each of its uses."""
    found: dict[str, list[Moments]] = {}
    for (_, weight, role, *_), moments in places.items():
        if role == "reads":
            found.setdefault(weight, []).append(moments)
    return found


def _relative(values: Tensor, sizes: Tensor) -> Tensor:
    """Values on the scale of the mean size; where all sizes are zero, so is everything."""
    mean = sizes.mean()
    return torch.zeros_like(values) if float(mean) == 0 else values / mean
