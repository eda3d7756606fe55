"""Weights as features: channels are similar when the parameters that write and read them are."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from ..blueprint import AxisBinding, Blueprint
from ..blueprint.spaces import owner
from ..core.arrays import Floats
from ..core.blocks import Part, blocks, fits, parts
from ..core.compute import moved
from ..core.literals import Convention
from ..core.progress import advance
from ..kernels import Coupling, KernelPair
from ..kernels.pair import common_frame
from .traced import TracedModel

Couplings = Mapping[str, Coupling]

KEPT = 2**28  # bytes of one space's products, at most, that are kept for the next sweep
FEW = 16  # features whose products are as quickly computed as read
PIECE = 2**18  # numbers that are squared at a time


class WeightCosts:
    """The global matching objective of two models, and its cost for one space while the others stand still.

    The objective is Σ_p w_p ‖A_p − B_p‖² over the parameters p, both models mapped into common coordinates: the fused
    channels of every space. As function of one space's coupling it is linear, so solving space after space never
    makes it worse. w_p brings every module to the same scale: one over the squared norm of its parameters, and over
    the fraction of the parameter that is fused at all.

    Args:
        ours, theirs: the model to match and the last model.
        fused: space → fraction of its channels that will be fused (never 0).
        convention: "value" or "mass".
        normalise: bring modules to the same scale; False is Git Re-Basin's objective.
        vectors: let parameters of one axis take part on their own (norm scales and shifts).
    """

    def __init__(
        self,
        ours: TracedModel,
        theirs: TracedModel,
        fused: Mapping[str, float],
        *,
        convention: Convention = "value",
        normalise: bool = True,
        vectors: bool = False,
    ) -> None:
        self.ours, self.theirs, self.convention, self.normalise = ours, theirs, convention, normalise
        self.parameters = describing_parameters(theirs, vectors=vectors)
        self._sizes = self._squared_norms() if normalise else {}
        self.weights = self._scales(fused)
        self._cache = _Kept(min(ours.kept, theirs.kept))
        self._frames: dict[str, tuple[Coupling, tuple[KernelPair, KernelPair]]] = {}

    def at(self, fused: Mapping[str, float]) -> WeightCosts:
        """The same objective for other fractions of fused channels; what was computed so far is shared."""
        other = copy.copy(self)
        other.weights = other._scales(fused)
        return other

    def _squared_norms(self) -> dict[str, float]:
        """Module → squared norm of its parameters, over both models."""
        size: dict[str, float] = defaultdict(float)
        for name in self.parameters:
            for source in (self.ours, self.theirs):
                for part in parts(source.tensors[name]):
                    size[owner(name)] += float(source.number(name, part).square().sum())
        return size

    def _scales(self, fused: Mapping[str, float]) -> dict[str, float]:
        """Parameter → its weight in the objective."""
        if not self.normalise:
            return dict.fromkeys(self.parameters, 1.0)
        scales = {}
        for name in self.parameters:
            fraction = 1.0
            for bound in self.theirs.blueprint.axes[name].values():
                covered = sum(b.index.size * fused[s.name] for s, b in bound)
                fraction *= covered / sum(b.index.size for _, b in bound)
            total = self._sizes[owner(name)] * fraction
            scales[name] = 1.0 / total if total > 0 else 0.0
        return scales

    def bindings(self, space: str) -> list[tuple[AxisBinding, AxisBinding]]:
        """The axes that describe the channels of a space, in both models."""
        pairs = zip(self.ours.blueprint[space].bindings, self.theirs.blueprint[space].bindings, strict=True)
        return [(a, b) for a, b in pairs if b.parameter in self.weights]

    def others(self, binding: AxisBinding) -> list[str]:
        """The spaces on the other axes of a binding's parameter."""
        axes = self.theirs.blueprint.axes[binding.parameter]
        return [s.name for axis, bound in axes.items() if axis != binding.axis for s, _ in bound]

    def operations(self, space: str, bindings: Iterable[tuple[AxisBinding, AxisBinding]] | None = None) -> float:
        """How many operations the products take that the cost of a space is made of."""
        bound = self.bindings(space) if bindings is None else bindings
        return operations(self.theirs.blueprint, self.ours.blueprint[space].width, (b for _, b in bound))

    def cost(
        self,
        space: str,
        couplings: Couplings,
        only: Iterable[tuple[AxisBinding, AxisBinding]] | None = None,
    ) -> Floats:
        """(n × m) cost of fusing channel i of our model with channel j of theirs, the other spaces as coupled."""
        n, m = self.ours.blueprint[space].width, self.theirs.blueprint[space].width
        rows, cols, cross = np.zeros(n), np.zeros(m), None
        for a, b in self.bindings(space) if only is None else only:
            term = self._term(space, a, b, couplings)
            weight = self.weights[b.parameter]
            rows += weight * term.ours
            cols += weight * term.theirs
            cross = term.add_to(cross, -2.0 * weight)
            advance(self.operations(space, [(a, b)]))
        if cross is None:
            return np.zeros((n, m))
        cross.add_(torch.from_numpy(rows).to(cross)[:, None]).add_(torch.from_numpy(cols).to(cross))
        # NumPy asks for large pages, which take half of the time to come by
        return np.asarray(cross.clamp_min_(0.0).cpu().numpy(), np.float64)

    def _term(self, space: str, a: AxisBinding, b: AxisBinding, couplings: Couplings) -> _Term:
        found = self._kept(space, b, couplings)
        if found is not None:
            return found
        found = self._in_blocks(a, b, couplings)
        if found is not None:
            self._cache.keep((space, b.parameter, b.axis, b.role), [couplings[s] for s in self.others(b)], found)
            return found
        x, y = self._slices(a, b, couplings)
        lengths = _squared_lengths(x), _squared_lengths(y)
        if x.shape[1] < FEW or len(self.bindings(space)) * len(x) * len(y) * x.element_size() > KEPT:
            return _Term(*lengths, (x, y.T))
        found = _Term(*lengths, (x @ y.T,))
        self._cache.keep((space, b.parameter, b.axis, b.role), [couplings[s] for s in self.others(b)], found)
        return found

    def _in_blocks(self, a: AxisBinding, b: AxisBinding, couplings: Couplings) -> _Term | None:
        """What an axis contributes, summed over blocks of the longest other axis; nothing where the weight takes no
        more memory than the products."""
        shape, n, m = self.theirs.blueprint.shapes[b.parameter], len(a.index), len(b.index)
        if fits(math.prod(shape)) or math.prod(shape) <= 4 * n * m:
            return None
        axis = max((k for k in range(len(shape)) if k != b.axis), key=lambda k: shape[k])
        kernels = self._kernels(b.parameter, couplings, keep=b.axis)
        length = shape[axis]
        if axis in self.theirs.blueprint.axes[b.parameter]:
            length = self.theirs.axis_map(b.parameter, axis, kernels[1]).length
        rows, cols, products = np.zeros(n), np.zeros(m), None
        for block in blocks(np.arange(length), math.prod(shape) // shape[axis]):
            x, y = self._slices(a, b, couplings, (axis, block))
            rows += _squared_lengths(x)
            cols += _squared_lengths(y)
            products = x @ y.T if products is None else products.addmm_(x, y.T)
        assert products is not None
        return _Term(rows, cols, (products,))

    def _kept(self, space: str, b: AxisBinding, couplings: Couplings) -> _Term | None:
        """What an axis contributes, if it is known for these couplings of the spaces beside it."""
        cached = self._cache.get((space, b.parameter, b.axis, b.role))
        if cached is None or any(x is not couplings[s] for x, s in zip(cached[0], self.others(b), strict=True)):
            return None
        return cached[1]

    def is_kept(self, space: str, couplings: Couplings) -> bool:
        """Whether most of the products that the cost of a space is made of are known, or made in no time."""
        known = [
            (a, b) for a, b in self.bindings(space) if self._is_short(b) or self._kept(space, b, couplings) is not None
        ]
        return 2 * self.operations(space, known) > self.operations(space)

    def _is_short(self, b: AxisBinding) -> bool:
        """Whether an axis has so few features that their products are as quickly computed as read."""
        shape = self.theirs.blueprint.shapes[b.parameter]
        return math.prod(shape) * b.index.shape[1] < FEW * shape[b.axis]

    def products(self, space: str, couplings: Couplings) -> Floats:
        """(n × m) inner products of channel i of our model with channel j of theirs, the other spaces as coupled.

        The objective falls by twice what a rotation or another coupling of the space makes of their sum.
        """
        total = np.zeros((self.ours.blueprint[space].width, self.theirs.blueprint[space].width))
        for a, b in self.bindings(space):
            x, y = self._slices(a, b, couplings)
            total += self.weights[b.parameter] * (x @ y.T).cpu().double().numpy()
        return total

    def most(self, space: str, couplings: Couplings) -> float:
        """The largest sum of a space's inner products that there could be, which rotations do not change."""
        slices_of = ((self.weights[b.parameter], *self._slices(a, b, couplings)) for a, b in self.bindings(space))
        return sum((weight * float(x.norm() * y.norm()) for weight, x, y in slices_of), 0.0)

    def alike(self, couplings: Couplings) -> float:
        """The sum of all parameters' inner products, everything as coupled: what the objective falls by, half of it."""
        total = 0.0
        for name, weight in self.weights.items():
            ours, theirs = self._kernels(name, couplings)
            total += weight * float((self.ours.mapped(name, ours) * self.theirs.mapped(name, theirs)).sum())
        return total

    def _slices(
        self, a: AxisBinding, b: AxisBinding, couplings: Couplings, part: Part | None = None
    ) -> tuple[Tensor, Tensor]:
        """The channels of an axis in both models, (n × d) and (m × d), the other axes in common coordinates, of which
        one may be looked at in part."""
        ours, theirs = self._kernels(b.parameter, couplings, keep=b.axis)
        x = slices(self.ours.mapped(a.parameter, ours, keep=a.axis, part=part), a)
        return moved(x), moved(slices(self.theirs.mapped(b.parameter, theirs, keep=b.axis, part=part), b))

    def _kernels(
        self, name: str, couplings: Couplings, keep: int | None = None
    ) -> tuple[dict[str, KernelPair], dict[str, KernelPair]]:
        """Both models' kernels into common coordinates, for the axes of a parameter other than `keep`."""
        ours, theirs = {}, {}
        for axis, bound in self.theirs.blueprint.axes[name].items():
            for space, _ in bound if axis != keep else ():
                coupling = couplings[space.name]
                known = self._frames.get(space.name)
                if known is None or known[0] is not coupling:
                    known = coupling, common_frame(coupling, self.convention)
                    self._frames[space.name] = known
                ours[space.name], theirs[space.name] = known[1]
        return ours, theirs

    def objective(self, couplings: Couplings) -> float:
        """The global objective for couplings of the whole network."""
        total = 0.0
        for name, weight in self.weights.items():
            ours, theirs = self._kernels(name, couplings)
            gap = self.ours.mapped(name, ours) - self.theirs.mapped(name, theirs)
            total += weight * float(gap.square().sum())
        return total


@dataclass(frozen=True)
class _Term:
    """What one axis contributes to the squared distances of channels: |x|² + |y|² − 2 x·y.

    Attributes:
        ours, theirs: (n,) and (m,) squared lengths.
        products: (n × m) the inner products, or the two matrices that they are the product of.
    """

    ours: Floats
    theirs: Floats
    products: tuple[Tensor] | tuple[Tensor, Tensor]

    def add_to(self, total: Tensor | None, scale: float) -> Tensor:
        """The sum of inner products with these added to it."""
        first = self.products[0]
        if total is None and len(self.products) == 1:
            return first * scale
        if total is None:
            total = first.new_zeros(len(self.ours), len(self.theirs))
        total = total.to(torch.promote_types(total.dtype, first.dtype))
        parts = [p.to(total) for p in self.products]
        return total.add_(parts[0], alpha=scale) if len(parts) == 1 else total.addmm_(*parts, alpha=scale)


Key = tuple[str, str, int, str]  # space, parameter, axis, role


class _Kept(dict[Key, tuple[list[Coupling], _Term]]):
    """Inner products of axes, with the couplings that they hold for, as far as there is room (bytes).

    Every sweep asks for all of them in the same order, so what came first stays: it is the next to be asked for.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.size = room, 0
        self.lock = Lock()  # spaces are matched in threads

    def __reduce__(self) -> tuple[type[_Kept], tuple[int]]:
        """Other processes compute them again: they know a coupling by its identity."""
        return _Kept, (self.room,)

    def keep(self, key: Key, state: list[Coupling], term: _Term) -> None:
        size = term.products[0].nbytes
        with self.lock:
            self.size -= self.pop(key)[1].products[0].nbytes if key in self else 0
            if self.size + size <= self.room:
                self[key] = state, term
                self.size += size


def operations(blueprint: Blueprint, width: int, bindings: Iterable[AxisBinding]) -> float:
    """How many operations it takes to multiply what some axes carry by as much of so many channels."""
    numbers = 0.0
    for b in bindings:
        shape = blueprint.shapes[b.parameter]
        numbers += math.prod(shape) * b.index.size / shape[b.axis]
    return 2.0 * width * numbers


def describing_parameters(source: TracedModel, *, vectors: bool) -> list[str]:
    """Parameters that describe channels: weights, the biases that belong to them, and tables held as buffers."""
    known = ((n, source.tensors[n]) for n in source.blueprint.axes)
    trained = [n for n, t in known if isinstance(t, torch.nn.Parameter) or t.dim() > 1]
    if vectors:
        return trained
    with_matrix = {owner(n) for n in trained if source.tensors[n].dim() > 1}
    return [n for n in trained if owner(n) in with_matrix]


def slices(tensor: Tensor, binding: AxisBinding) -> Tensor:
    """(units × features): what stands at the places of every unit."""
    rows, index = tensor.movedim(binding.axis, 0), binding.index
    flat = index.reshape(-1)
    if not np.array_equal(flat, np.arange(len(rows))):
        rows = rows[torch.from_numpy(flat).to(tensor.device)]
    return rows.reshape(index.shape[0], -1)


def _squared_lengths(x: Tensor) -> Floats:
    """(n,) of (n × d), a piece at a time: the squares of a large weight would take as much memory as it does."""
    along = 0 if x.stride(1) == 1 else 1
    pieces = x.split(max(1, PIECE // max(1, x.shape[1 - along])), along)
    found = [piece.square().sum(1).double() for piece in pieces]
    total = torch.cat(found) if along == 0 else torch.stack(found).sum(0)
    return np.asarray(total.cpu().numpy())
