"""Joint alignment of two models: streams and heads rotated, heads paired and channels matched, by one objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from ...blueprint import Blueprint, Space
from ...core.arrays import Floats, Ints
from ...features import TracedModel, WeightCosts
from ...features.weights import Couplings
from ...kernels import Coupling
from ...rotation import head_channels, turn
from ...solvers import assignment, couple
from ...solvers.assignment import block_assignments
from ...solvers.directions import most_alike, procrustes, within_head

SWEEPS = 20  # at most
LEAST_GAIN = 1e-5  # of a sweep, relative to what everything could be alike at most
SURE = 1e-9  # a relative gain below it is rounding


@dataclass(frozen=True, eq=False)
class Similarities:
    """What is known of the channels of two models by their activations.

    Attributes:
        rotated: space to rotate → (n × n) covariances of our channels with those of the last model, relative to the
            largest sum that rotations could give them.
        matched: space to match → (n × n) correlations of our channels with those of the last model, 0 where there are
            none.
        centred: those of the first whose rotations must keep the mean over the channels.
        pairs: those of the first whose heads may be rotated in pairs of channels only → (channels of a head / 2 × 2)
            these pairs.
    """

    rotated: Mapping[str, Floats]
    matched: Mapping[str, Floats] = field(default_factory=dict)
    centred: frozenset[str] = frozenset()
    pairs: Mapping[str, Ints] = field(default_factory=dict)


class Descent:
    """Rotates and matches space after space of a model towards the last one, the others standing still.

    The objective is the inner product of all parameters, weighted as for matching by weights, and for every space that
    of its activations, relative to the largest that there could be and times the largest that its weights could have.
    Each step solves its Procrustes problem or its assignment exactly, for heads both, so that nothing ever gets worse.

    Args:
        models: our model, which is rotated in place, and the last one.
        blueprints: theirs.
        couplings: what is matched with what to begin with, in all spaces.
        known: what is known of their activations.

    Attributes:
        couplings: what is matched with what.
        turns: space → (n × n) how it was rotated.
    """

    def __init__(
        self, models: Sequence[nn.Module], blueprints: Sequence[Blueprint], couplings: Couplings, known: Similarities
    ) -> None:
        self.models, self.blueprints, self.known = models, blueprints, known
        self.couplings = dict(couplings)
        self.turns = {s: np.eye(len(c)) for s, c in known.rotated.items()}
        ours, theirs = map(TracedModel.of, models, blueprints)
        self.weights = WeightCosts(ours, theirs, dict.fromkeys(couplings, 1.0))
        most = {s: self.weights.most(s, couplings) for s in (*known.rotated, *known.matched)}
        self._sizes = {s: size if size > 0 else 1.0 for s, size in most.items()}
        self._sizes |= {s: self._sizes[s] / len(c) for s, c in known.matched.items()}
        taking_part = [space for space in blueprints[0] if space.name in self._sizes]
        self._steps = {space.bundle or space.name: self._together(space) for space in taking_part}

    def run(self) -> list[float]:
        """Sweep over all spaces until hardly anything is gained; the objective at the start and after every sweep."""
        history = [self.objective()]
        most = sum(self._sizes.values()) + sum(self.weights.most(s, self.couplings) for s in self._sizes)
        while len(history) <= SWEEPS:
            for spaces in self._steps.values():
                self._improve(spaces)
            history.append(self.objective())
            if history[-1] - history[-2] <= LEAST_GAIN * most:
                break
        return history

    def objective(self) -> float:
        """What is never lowered."""
        activations = (_sum(self._activations(s), self.couplings[s]) for s in self._sizes)
        return self.weights.alike(self.couplings) + sum(activations, 0.0)

    def cost(self, space: str) -> Floats:
        """(n × m) what fusing channels of a matched space costs, everything else as it is."""
        ours, theirs = map(TracedModel.of, self.models, self.blueprints)
        weights = WeightCosts(ours, theirs, dict.fromkeys(self.couplings, 1.0))
        return weights.cost(space, self.couplings) / 2 + self._sizes[space] * (1.0 - self.known.matched[space])

    def _activations(self, space: str) -> Floats:
        """(n × m) how alike channels are by their activations."""
        if space in self.turns:
            return self._sizes[space] * (self.turns[space].T @ self.known.rotated[space])
        alike = self.known.matched.get(space)
        return np.zeros(()) if alike is None else self._sizes[space] * alike

    def _alike(self, space: str) -> Floats:
        """(n × m) what the objective gains where channels correspond, everything else as it is."""
        return self.weights.products(space, self.couplings) + self._activations(space)

    def _together(self, space: Space) -> tuple[str, ...]:
        """The space, or all whose heads go together with its own."""
        if space.bundle is None:
            return (space.name,)
        return tuple(s.name for s in self.blueprints[0] if s.bundle == space.bundle)

    def _improve(self, spaces: tuple[str, ...]) -> None:
        """One step. What is on several axes of one parameter stays as it is, for there the objective is not linear, and
        so do heads of which some space differs in width."""
        beside = {s for space in spaces for _, b in self.weights.bindings(space) for s in self.weights.others(b)}
        if beside & set(spaces) or any(len(set(self.couplings[s].shape)) > 1 for s in spaces):
            return
        if self.blueprints[0][spaces[0]].bundle is not None:
            self._pair(spaces)
        elif spaces[0] in self.turns:
            self._rotate(spaces[0])
        else:
            self._match(spaces[0])

    def _rotate(self, space: str) -> None:
        """A stream: channels stay matched."""
        alike = _matched(self._alike(space), self.couplings[space])
        self._turn(space, nearest(alike, centred=space in self.known.centred))

    def _turn(self, space: str, step: Floats) -> None:
        turn(self.models[0], self.blueprints[0], {space: torch.from_numpy(step)})
        self.turns[space] = self.turns[space] @ step

    def _match(self, space: str) -> None:
        """Channels one to one."""
        alike = self._alike(space)
        found, before = couple(-alike, 0.0), _sum(alike, self.couplings[space])
        if _sum(alike, found) > before + SURE * abs(before):
            self.couplings[space] = found

    def _pair(self, bundle: tuple[str, ...]) -> None:
        """Heads one to one, each rotated into its partner, or channel by channel where its space is not rotated."""
        heads = {s: [np.stack(head_channels(b[s])) for b in self.blueprints] for s in bundle}
        alike, inner = {s: self._alike(s) for s in bundle}, {}
        value = np.zeros((len(heads[bundle[0]][0]),) * 2)
        for s, (ours, theirs) in heads.items():
            if s in self.turns:
                blocks = alike[s][ours[:, None, :, None], theirs[None, :, None, :]]
                value += most_alike(blocks, self.known.pairs.get(s))
            else:
                inner[s], cost = block_assignments(-alike[s], ours, theirs)
                value -= cost
        rows, cols = assignment(-value)
        before = self._partners(bundle[0])
        if value[rows, cols].sum() <= value[rows, before].sum() + SURE * abs(value).sum():
            cols = before
        for s, (ours, theirs) in heads.items():
            paired = theirs[cols]
            if s in self.turns:
                planes = self.known.pairs.get(s)
                steps = [within_head(alike[s][np.ix_(a, b)], planes) for a, b in zip(ours, paired, strict=True)]
                self._turn(s, block_diagonal(np.stack(steps), self.blueprints[0][s]))
            else:
                paired = np.take_along_axis(paired, inner[s][rows, cols], axis=1)
            self.couplings[s] = Coupling.of_pairs(ours.ravel(), paired.ravel(), np.ones(paired.size, bool))

    def _partners(self, space: str) -> Ints:
        """(heads,) the head of the last model that each of ours is paired with."""
        ours, theirs = (b[space].blocks for b in self.blueprints)
        assert ours is not None
        assert theirs is not None
        coupling, found = self.couplings[space], np.empty(ours.max() + 1, np.int64)
        found[ours[coupling.rows]] = theirs[coupling.cols]
        return found


def _sum(alike: Floats, coupling: Coupling) -> float:
    return float(alike[coupling.rows, coupling.cols].sum()) if alike.ndim else 0.0


def nearest(alike: Floats, *, centred: bool) -> Floats:
    """(n × n) the rotation with the largest inner product with a matrix, of those that keep the mean if it says so."""
    if not centred:
        return procrustes(alike)
    basis = without_mean(len(alike))
    return basis @ procrustes(basis.T @ alike @ basis) @ basis.T + 1 / len(alike)


def block_diagonal(blocks: Floats, space: Space) -> Floats:
    """(n × n) of rotations within heads, (heads × channels × channels)."""
    found = np.zeros((space.width, space.width))
    for channels, block in zip(head_channels(space), blocks, strict=True):
        found[np.ix_(channels, channels)] = block
    return found


def _matched(alike: Floats, coupling: Coupling) -> Floats:
    """The columns in the order of our channels that they are matched with."""
    order = np.empty(len(alike), np.int64)
    order[coupling.rows] = coupling.cols
    return alike[:, order]


def without_mean(n: int) -> Floats:
    """(n × n−1) orthonormal vectors that sum to zero."""
    return np.ascontiguousarray(np.linalg.qr(np.concatenate([np.ones((n, 1)), np.eye(n)[:, :-1]], 1))[0][:, 1:])
