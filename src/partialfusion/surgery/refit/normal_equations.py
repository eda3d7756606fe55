"""Least squares from streamed samples, several independent groups side by side, in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.compute import moved

# Entries of the largest matrix that is kept: 2 GB of doubles.
LARGEST = 1 << 28
# A column whose variance is below this part of its mean square does not vary.
DEAD = 1e-12
# The merged weights count as much as so many samples, however few there are.
PRIOR = 10.0


class TooLargeError(Exception):
    """Neither the samples nor their products fit into memory."""


class NormalEquations:
    """Sums for the regression of targets t (groups × n × q) on inputs x (groups × n × p), n growing.

    Samples are kept as they are while there are fewer than p of them, because then they are smaller than the matrix
    of their products, and the equations are solved in their dual form.
    """

    def __init__(self, *, intercept: bool) -> None:
        self.intercept = intercept
        self.count = 0
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.sums: list[Tensor] = []

    def add(self, x: Tensor, t: Tensor) -> None:
        """Add samples; x is (groups × n × p), t is (groups × n × q)."""
        x, t = moved(x).double(), moved(t).double()
        self.count += x.shape[1]
        groups, _, p = x.shape
        if self.sums:
            self._sum(x, t)
            return
        self.kept.append((x, t))
        if self.count >= p and groups * p * p <= LARGEST:
            kept, self.kept = self.kept, []
            for samples in kept:
                self._sum(*samples)
        elif groups * self.count * p > LARGEST:
            raise TooLargeError(f"{self.count:,} samples of {p:,} inputs")

    def _sum(self, x: Tensor, t: Tensor) -> None:
        new = [x.mT @ x, x.mT @ t, x.sum(1, keepdim=True), t.sum(1, keepdim=True), t.square().sum(1, keepdim=True)]
        self.sums = [a.add_(b) for a, b in zip(self.sums, new, strict=True)] if self.sums else new

    def system(self) -> System:
        """The equations of all samples so far, centred where there is an intercept."""
        if self.sums:
            return self._from_sums()
        x, t = (torch.cat(parts, 1) for parts in zip(*self.kept, strict=True))
        x_mean, t_mean = x.mean(1, keepdim=True), t.mean(1, keepdim=True)
        raw = x.square().sum(1)
        if self.intercept:
            x, t = x - x_mean, t - t_mean
        return System(self.count, x_mean, t_mean, raw, x.square().sum(1), x.mT @ t, t.square().sum(1), samples=x)

    def _from_sums(self) -> System:
        gram, cross, x_sum, t_sum, squares = self.sums
        x_mean, t_mean = x_sum / self.count, t_sum / self.count
        raw = gram.diagonal(dim1=1, dim2=2).clone()
        if self.intercept:
            gram = gram - x_sum.mT @ x_mean
            cross, squares = cross - x_sum.mT @ t_mean, squares - t_sum * t_mean
        power = gram.diagonal(dim1=1, dim2=2).clamp_min(0)
        return System(self.count, x_mean, t_mean, raw, power, cross, squares.squeeze(1).clamp_min(0), gram=gram)


@dataclass(frozen=True)
class System:
    """Normal equations of `groups` regressions with p inputs and q targets each.

    Attributes:
        count: samples.
        x_mean, t_mean: (groups × 1 × p) and (groups × 1 × q).
        raw: (groups × p) sums of squares of the inputs.
        power: (groups × p) the same after centring; without an intercept nothing is centred.
        cross: (groups × p × q) products of inputs and targets.
        spread: (groups × q) sums of squares of the targets.
        gram: (groups × p × p) products of the inputs, or
        samples: (groups × n × p) the inputs themselves.
    """

    count: int
    x_mean: Tensor
    t_mean: Tensor
    raw: Tensor
    power: Tensor
    cross: Tensor
    spread: Tensor
    gram: Tensor | None = None
    samples: Tensor | None = None

    @property
    def finite(self) -> bool:
        return all(bool(torch.isfinite(t).all()) for t in (self.power, self.cross, self.spread))

    def times(self, v: Tensor) -> Tensor:
        """XᵀX v for v (groups × p × k)."""
        if self.gram is not None:
            return self.gram @ v
        assert self.samples is not None
        return self.samples.mT @ (self.samples @ v)

    def shrinkage(self, ridge: float, columns: Tensor) -> Tensor:
        """(groups,) the ridge term: this part of the mean diagonal, and that of `PRIOR` samples at the least; so much
        that nothing moves where all is dead."""
        mean, raw = self.power[:, columns].mean(1), self.raw[:, columns].mean(1)
        return torch.where(mean > DEAD * raw, max(ridge, PRIOR / self.count) * mean, raw + 1.0)

    def moments(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """(groups × outputs) mean and variance of matrix · x; centred equations only."""
        energy = (matrix * self.times(matrix.mT).mT).sum(-1).clamp_min(0)
        return (matrix @ self.x_mean.mT).squeeze(-1), energy / max(1, self.count - 1)

    def solve(self, rhs: Tensor, ridge: float, columns: Tensor) -> Tensor:
        """(XᵀX + λ)⁻¹ rhs on some of the columns; rhs is (groups × columns × k)."""
        shrink = self.shrinkage(ridge, columns)[:, None, None]
        if self.gram is not None:
            matrix = self.gram[:, columns[:, None], columns]
            matrix.diagonal(dim1=1, dim2=2).add_(shrink[:, 0])
            return torch.cholesky_solve(rhs, torch.linalg.cholesky(matrix))
        assert self.samples is not None
        x = self.samples[:, :, columns]
        matrix = x @ x.mT
        matrix.diagonal(dim1=1, dim2=2).add_(shrink[:, 0])
        return (rhs - x.mT @ torch.cholesky_solve(x @ rhs, torch.linalg.cholesky(matrix))) / shrink
