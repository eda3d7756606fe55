"""Streamed first and second moments of the activations of several models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.compute import moved

FEW = 32  # rows of a product below which it is computed in double precision


class Moments:
    """Means and covariances of the channels of several models at one place, one batch at a time.

    A channel may have several slots (the channels of a group, the positions of a flattened map): every slot has a mean
    of its own, and covariances are averages over the slots. Values are shifted by the first batch's mean before they
    are summed, so that nothing cancels.

    Args:
        within: also keep covariances within each model and between all of them; without it, only those of each model
            with the last one.
    """

    def __init__(self, *, within: bool = False) -> None:
        self.within = within
        self.count = 0
        self.shifts: list[Tensor] = []
        self.sums: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.products: dict[tuple[int, int], Tensor] = {}

    def add(self, activations: Sequence[Tensor]) -> None:
        """Count a batch: per model, (channels × slots × samples). The tensors are overwritten."""
        activations = [moved(x) for x in activations]
        if not self.count:
            self._start(activations)
        self.count += activations[0].shape[2]
        for m, x in enumerate(activations):
            x.sub_(self.shifts[m][..., None])
            self.sums[m] += x.sum(2)
        flat = [x.flatten(1) for x in activations]
        for m, x in enumerate(flat):
            self.squares[m] += x.square().sum(1)
        for (i, j), total in self.products.items():
            total += _product(flat[i], flat[j])

    def _start(self, activations: Sequence[Tensor]) -> None:
        widths, device = [len(x) for x in activations], activations[0].device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.shifts = [x.mean(2) for x in activations]
        self.sums = [zeros(*x.shape[:2]) for x in activations]
        self.squares = [zeros(n) for n in widths]
        last = len(widths) - 1
        for i, n in enumerate(widths):
            for j in range(i, last + 1) if self.within else [last] * (i != last):
                self.products[i, j] = zeros(n, widths[j])

    @property
    def models(self) -> int:
        return len(self.sums)

    def wanted(self, per_channel: int) -> int:
        """How many times as much data makes so many samples for each channel."""
        channels = sum(len(s) for s in self.sums)
        return -(-per_channel * channels // max(1, self.count * self.sums[0].shape[1]))

    def mean(self, m: int) -> Tensor:
        """(n × slots) of one model."""
        return self.shifts[m].double() + self.sums[m] / self.count

    def covariance(self, i: int, j: int) -> Tensor:
        """(n × m) of two models."""
        if i > j:
            return self.covariance(j, i).T
        slots = self.sums[i].shape[1]
        a, b = (self.sums[m] / self.count for m in (i, j))
        return (self.products[i, j] / self.count - a @ b.T) / slots

    def variance(self, m: int) -> Tensor:
        """(n,) of one model."""
        slots = self.sums[m].shape[1]
        found = (self.squares[m] / self.count - (self.sums[m] / self.count).square().sum(1)) / slots
        return found.clamp_min(0)

    def correlation(self, i: int, j: int) -> Tensor:
        """(n × m) of two models; a channel that never varies correlates only with others that never vary."""
        variances = [self.variance(m) for m in (i, j)]
        power = [self.squares[m] / self.count for m in (i, j)]
        dead = [v <= 1e-12 * p.clamp_min(1e-30) for v, p in zip(variances, power, strict=True)]
        std = [v.sqrt().masked_fill(d, 1.0) for v, d in zip(variances, dead, strict=True)]
        corr = (self.covariance(i, j) / (std[0][:, None] * std[1][None, :])).clamp(-1, 1)
        either, both = dead[0][:, None] | dead[1][None, :], dead[0][:, None] & dead[1][None, :]
        return corr.masked_fill(either, 0.0).masked_fill(both, 1.0)

    def squared_distance(self, i: int, j: int) -> Tensor:
        """(n × m) mean squared differences of the channels of two models."""
        a, b = self.mean(i), self.mean(j)
        offset = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square() / a.shape[1]
        spread = self.variance(i)[:, None] + self.variance(j)[None, :] - 2 * self.covariance(i, j)
        return spread.clamp_min(0) + offset

    def union_covariance(self) -> Tensor:
        """(n × n) of the channels of all models together."""
        every = range(self.models)
        return torch.cat([torch.cat([self.covariance(i, j) for j in every], 1) for i in every])

    def union_variance(self) -> Tensor:
        """(n,) of the channels of all models together."""
        return torch.cat([self.variance(m) for m in range(self.models)])

    def union_power(self) -> Tensor:
        """(n,) mean squares of the channels of all models together."""
        mean = torch.cat([self.mean(m) for m in range(self.models)])
        return self.union_variance() + mean.square().mean(1)

    def union_squared_distances(self) -> Tensor:
        """(n × n) mean squared differences of the channels of all models together."""
        mean, variance = torch.cat([self.mean(m) for m in range(self.models)]), self.union_variance()
        apart = torch.cdist(mean, mean, compute_mode="donot_use_mm_for_euclid_dist").square() / mean.shape[1]
        spread = variance[:, None] + variance[None, :] - 2 * self.union_covariance()
        return spread.clamp_min(0) + apart


def _product(x: Tensor, y: Tensor) -> Tensor:
    """(n × m) of (n × s) and (m × s). Where there are few rows, single precision would add up sample by sample and lose
    digits, and double precision costs little."""
    return x.double() @ y.double().T if min(len(x), len(y)) < FEW else x @ y.T
