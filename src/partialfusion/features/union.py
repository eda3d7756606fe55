"""The channels of all models together, as generalised pruning sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import Role
from ..blueprint.spaces import owner
from ..core.arrays import Floats, Ints
from ..kernels import KernelPair
from .activations import finite
from .moments import Moments
from .traced import TracedModel
from .weights import describing_parameters, slices


@dataclass(frozen=True)
class UnionFeatures:
    """What is known of the channels of the union.

    Attributes:
        sources: the models.
        frames: per model, space → its kernel pair into the reference frame, in which weights are compared.
        moments: space → moments of the union's activations, one for each place where the space is seen.
        kind: "weights", "activations" or "both"; spaces whose activations are not seen go by their weights.
    """

    sources: Sequence[TracedModel]
    frames: Sequence[Mapping[str, KernelPair]]
    moments: Mapping[str, Sequence[Moments]]
    kind: str

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
            found.append([_relative(m.union_squared_distances(), m.union_power()) for m in self.moments[space]])
        if self._by_weights(space):
            rows = self._rows(space)
            found.append([_relative(torch.cdist(x, x).square(), x.square().sum(1)) for x in rows])
        return self._summed(space, found)

    def covariance(self, space: str) -> Floats:
        """(n × n) covariances of activations, inner products of weights; all places and modules count the same."""
        found = []
        if self._by_activations(space):
            found.append([_relative(m.union_covariance(), m.union_variance()) for m in self.moments[space]])
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
        found = [m.union_variance() for m in self.moments[space]]
        return finite(torch.stack([_relative(v, v) for v in found]).mean(0).sqrt().cpu().numpy(), space)

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
            return slices(source.mapped(binding.parameter, self.frames[m], keep=binding.axis), binding).double()
        return slices(source.number(binding.parameter), binding).double()


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

    def importance(self, by: str) -> Floats:
        """(n,) by "incoming" or "outgoing" weights or by the deviation of the "activation", times the model's share."""
        if by == "activation":
            return self.masses * self.features.deviations(self.name)
        return self.masses * self.features.norms(self.name, outgoing=by == "outgoing")


def _relative(values: Tensor, sizes: Tensor) -> Tensor:
    """Values on the scale of the mean size; where all sizes are zero, so is everything."""
    mean = sizes.mean()
    return torch.zeros_like(values) if float(mean) == 0 else values / mean
