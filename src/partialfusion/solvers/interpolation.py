"""Interpolation: the channels from which all others can be computed best, and the map that computes them.

Column subset selection on a Gram matrix (second moments or covariances of the channels). The greedy criterion is the
largest reduction of the total weighted residual. QR with column pivoting takes the channel with the largest residual of
its own instead; the two agree where channels are uncorrelated, and the reduction is never the smaller one in a step,
for it counts what a channel explains of all others, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve, solve

from ..core.arrays import Floats, Ints
from ..errors import OptionError
from .clustering.problem import checked_masses, checked_square

TOLERANCE = 1e-10  # a residual below this fraction of a channel's second moment is rounding
RIDGE = 1e-3
WORK = 1 << 29  # multiplications that swaps may take at most, some seconds
FEW = 16  # swaps are tried if there is work enough for one in so many of the kept channels


@dataclass(frozen=True, eq=False)
class Selection:
    """The channels that are kept, in the order of selection.

    Attributes:
        kept: (k,) indices of channels; the first j of them are the selection of size j, unless they were swapped.
        residuals: (k + 1,) Σ_i (weight_i · residual_i)² after the first 0 … k of them; never growing.
    """

    kept: Ints
    residuals: Floats

    @property
    def residual(self) -> float:
        """What is lost with all of them."""
        return float(self.residuals[-1])

    def first(self, k: int) -> Selection:
        """The selection of a smaller size."""
        return Selection(self.kept[:k], self.residuals[: k + 1])


@dataclass(frozen=True, eq=False)
class _Problem:
    """A Gram matrix, squared weights of its channels, and below what a residual counts as none."""

    gram: Floats
    weights: Floats
    floor: Floats

    @classmethod
    def of(cls, gram: ArrayLike, weights: ArrayLike | None, tolerance: float) -> _Problem:
        square = checked_square(gram, "second moments")
        square = (square + square.T) / 2
        diagonal = square.diagonal()
        if diagonal.min() < 0:
            raise OptionError(
                f"second moments must not be negative: channel {diagonal.argmin()} has {diagonal.min():g}"
            )
        squared = checked_masses(weights, len(square)) ** 2
        floor = np.maximum(tolerance * diagonal, np.finfo(float).tiny)
        return cls(square, squared, np.where(squared > 0, floor, np.inf))


def select(gram: ArrayLike, k: int, weights: ArrayLike | None = None, *, tolerance: float = TOLERANCE) -> Selection:
    """k channels, one after the other, each the one that lowers the weighted residual of all channels most.

    One selection serves all smaller sizes. A channel of weight zero is not selected before all others. When the others
    can all be computed exactly, the rest of the selection is of no consequence on the data it was made on; then come
    the channels that resemble those kept least, then those that are zero, and duplicates of kept channels last.

    Args:
        gram: (n × n) second moments of the channels.
        k: number of channels, 1 … n.
        weights: (n,) how much a residual of each channel counts (its square is weighted by the square); None for 1.
        tolerance: the fraction of a channel's second moment below which a residual counts as none.
    """
    from ._interpolation import greedy

    problem = _Problem.of(gram, weights, tolerance)
    n = len(problem.gram)
    if not 1 <= k <= n or k != int(k):
        raise OptionError(f"cannot keep {k} of {n} channels: k must be 1 … {n}")
    order, energy = greedy(problem.gram.copy(), problem.weights, problem.floor, int(k))
    total = float(problem.weights @ problem.gram.diagonal())
    left = energy[-1] if len(energy) else total
    rest = _rest(problem, order, int(k) - len(order), max(tolerance, TOLERANCE))
    residuals = np.concatenate([[total], energy, np.full(len(rest), left)])
    if k == n:
        residuals[-1] = 0.0
    return Selection(np.concatenate([order, rest]), np.minimum.accumulate(residuals))


def _rest(problem: _Problem, order: Ints, count: int, tolerance: float) -> Ints:
    """(count,) channels that add nothing to those chosen, the least alike first, zeros and duplicates last."""
    n = len(problem.gram)
    likeness, chosen = np.zeros(n), np.zeros(n, bool)
    for j in order:
        likeness, chosen[j] = np.maximum(likeness, _likeness(problem.gram, j)), True
    found: list[int] = []
    for _ in range(count):
        rank = np.where(problem.gram.diagonal() > 0, np.where(likeness < 1 - tolerance, 0.0, 3.0), 2.0)
        rank = np.where(problem.weights > 0, rank, rank + 4.0) + np.where(rank == 0, likeness, 0.0)
        j = int(np.where(chosen, np.inf, rank).argmin())
        found.append(j)
        likeness, chosen[j] = np.maximum(likeness, _likeness(problem.gram, j)), True
    return np.array(found, np.int64)


def _likeness(gram: Floats, j: int) -> Floats:
    """(n,) squared cosines of all channels with one; a channel of zeros is like none."""
    size = gram.diagonal() * gram[j, j]
    return gram[j] ** 2 / np.where(size > 0, size, np.inf)


def swap(
    gram: ArrayLike,
    selection: Selection,
    weights: ArrayLike | None = None,
    *,
    tolerance: float = TOLERANCE,
    work: int = WORK,
) -> Selection:
    """A selection of the same size that loses no more: single channels are exchanged while that helps.

    The kept channel that is missed least makes way for the one that then helps most. A swap costs O(n²); the search
    ends where no such swap helps, or when its work is done; where that is enough for a few channels only, as for 4,096,
    nothing is tried.

    Args:
        gram: (n × n) second moments of the channels.
        selection: where to start.
        weights: (n,) how much a residual of each channel counts.
        tolerance: the fraction of a channel's second moment below which a residual counts as none.
        work: the largest number of multiplications.
    """
    problem = _Problem.of(gram, weights, tolerance)
    n, kept = len(problem.gram), selection.kept.copy()
    if len(kept) == n or (problem.floor[kept] == np.inf).any() or selection.residual <= 0:
        return selection
    trials = work // n**2
    state = _State.of(problem, kept) if trials >= len(kept) // FEW else None
    if state is None:
        return selection
    tried = np.zeros(len(kept), bool)
    for _ in range(trials):
        if tried.all():
            break
        slot = int(np.where(tried, np.inf, state.losses()).argmin())
        tried[slot] = True
        if state.exchange(slot):
            tried[:] = False
    fresh = _State.of(problem, state.kept)  # updates add up rounding errors
    if fresh is None or not fresh.residual() < selection.residual:
        return selection
    return Selection(state.kept, np.append(selection.residuals[:-1], fresh.residual()))


@dataclass(eq=False)
class _State:
    """Kept channels S with what swaps need, updated by rank one.

    Attributes:
        problem: the Gram matrix G, its weights and floor.
        kept: (k,) S.
        inverse: (k × k) of G_SS.
        coefficients: (k × n) every channel from those kept.
        left: (n × n) the residual matrix.
    """

    problem: _Problem
    kept: Ints
    inverse: Floats
    coefficients: Floats
    left: Floats

    @classmethod
    def of(cls, problem: _Problem, kept: Ints) -> _State | None:
        """The state of a selection, None where its channels are linearly dependent."""
        gram = problem.gram
        try:
            factor = cho_factor(gram[np.ix_(kept, kept)])
        except np.linalg.LinAlgError:
            return None
        coefficients = cho_solve(factor, gram[kept])
        left = gram - gram[:, kept] @ coefficients
        return cls(problem, kept, cho_solve(factor, np.eye(len(kept))), coefficients, left)

    def residual(self) -> float:
        return float(self.problem.weights @ np.maximum(self.left.diagonal(), 0.0))

    def losses(self) -> Floats:
        """(k,) by how much the residual grows without each kept channel."""
        pivots = self.inverse.diagonal()
        return np.asarray(self.coefficients**2 @ self.problem.weights / np.where(pivots > 0, pivots, np.inf))

    def exchange(self, slot: int) -> bool:
        """Replace a kept channel by the best other one; whether that helped, else nothing changes."""
        w, row, pivot = self.problem.weights, self.coefficients[slot], self.inverse[slot, slot]
        if not pivot > 0:  # rounding: the kept channels are all but dependent
            return False
        left = self.left + np.outer(row / pivot, row)
        diagonal = left.diagonal()
        gains = np.where(diagonal > self.problem.floor, w @ left**2 / np.where(diagonal > 0, diagonal, 1.0), -1.0)
        gains[np.delete(self.kept, slot)] = -1.0
        j, before = int(gains.argmax()), max(0.0, gains[self.kept[slot]])
        if j == self.kept[slot] or not gains[j] > before * (1 + 1e-9):
            return False
        inverse = self.inverse - np.outer(self.inverse[:, slot], self.inverse[slot]) / pivot
        coefficients = self.coefficients - np.outer(self.inverse[:, slot] / pivot, row)
        inverse[slot], inverse[:, slot], coefficients[slot] = 0.0, 0.0, 0.0
        old, new = coefficients[:, j].copy(), left[j] / left[j, j]
        inverse += np.outer(old, old) / left[j, j]
        inverse[slot] = inverse[:, slot] = -old / left[j, j]
        inverse[slot, slot] = 1 / left[j, j]
        coefficients -= np.outer(old, new)
        coefficients[slot] = new
        self.left = left - np.outer(left[j], new)
        self.kept[slot], self.inverse, self.coefficients = j, inverse, coefficients
        return True


def select_blocks(
    gram: ArrayLike, blocks: Ints, k: int, weights: ArrayLike | None = None, *, tolerance: float = TOLERANCE
) -> Selection:
    """k blocks of channels, such as heads, each the one that lowers the weighted residual of all channels most.

    Args:
        gram: (n × n) second moments of the channels.
        blocks: (n,) the block of each channel, 0 … b − 1.
        k: number of blocks, 1 … b.
        weights: (n,) how much a residual of each channel counts.
        tolerance: the fraction of a channel's second moment below which a residual counts as none.
    """
    problem = _Problem.of(gram, weights, tolerance)
    members = [np.flatnonzero(blocks == b) for b in range(int(blocks.max()) + 1)]
    if not 1 <= k <= len(members):
        raise OptionError(f"cannot keep {k} of {len(members)} blocks: k must be 1 … {len(members)}")
    left, w = problem.gram.copy(), problem.weights
    found: list[int] = []
    residuals = [float(w @ left.diagonal())]
    for _ in range(k):
        best: tuple[float, int, Floats] | None = None
        for b in (b for b in range(len(members)) if b not in found):
            explained = _explained(left, members[b], problem.floor)
            gain = float(w @ (explained**2).sum(1))
            if best is None or gain > best[0] * (1 + tolerance):
                best = gain, b, explained
        assert best is not None
        found.append(best[1])
        left = left - best[2] @ best[2].T
        residuals.append(float(w @ np.maximum(left.diagonal(), 0.0)))
    if k == len(members):
        residuals[-1] = 0.0
    return Selection(np.array(found, np.int64), np.minimum.accumulate(residuals))


def _explained(left: Floats, block: Ints, floor: Floats) -> Floats:
    """(n × r) F with F Fᵀ the part of a residual matrix that a block of channels explains."""
    values, vectors = np.linalg.eigh(left[np.ix_(block, block)])
    scale = np.where(np.isfinite(floor[block]), floor[block], 0.0).max()
    real = values > max(float(scale), np.finfo(float).tiny)
    return np.asarray(left[:, block] @ (vectors[:, real] / np.sqrt(values[real])))


def read_map(gram: ArrayLike, kept: Ints, *, ridge: float = RIDGE, tolerance: float = TOLERANCE) -> Floats:
    """(n × k) every channel as a linear combination of those kept, by least squares.

    The ridge does not hold coefficients to zero but to the one kept channel that alone explains a channel best. So a
    kept channel reads itself and a duplicate of one reads it, exactly, whatever the ridge; a channel of zeros reads
    nothing.

    Args:
        gram: (n × n) second moments of the channels.
        kept: (k,) indices of those kept.
        ridge: the strength, relative to the second moment of each kept channel.
        tolerance: the fraction of a channel's second moment below which a residual counts as none.
    """
    square = checked_square(gram, "second moments")
    n, k = len(square), len(kept)
    scale = np.sqrt(np.maximum(square.diagonal(), 0.0))
    scale = np.where(scale > 0, scale, 1.0)
    cosines = square / np.outer(scale, scale)
    across = cosines[:, kept]
    best = np.abs(across).argmax(1)
    best[kept] = np.arange(k)
    nearest = np.zeros((n, k))
    nearest[np.arange(n), best] = across[np.arange(n), best]
    nearest[kept, np.arange(k)] = 1.0
    open_ = np.flatnonzero(across[np.arange(n), best] ** 2 < 1 - tolerance)
    open_ = np.setdiff1d(open_, kept)
    inner = cosines[np.ix_(kept, kept)]
    missing = across[open_] - nearest[open_] @ inner
    nearest[open_] += solve(inner + ridge * np.eye(k), missing.T, assume_a="pos").T
    return nearest * scale[:, None] / scale[kept][None, :]


def nearest_kept(gram: ArrayLike, kept: Ints) -> Ints:
    """(n,) which of the kept channels (0 … k − 1) resembles each channel most; a kept one is its own."""
    square = checked_square(gram, "second moments")
    likeness = np.stack([_likeness(square, int(j)) for j in kept], 1)
    found = likeness.argmax(1)
    found[kept] = np.arange(len(kept))
    return np.asarray(found, np.int64)
