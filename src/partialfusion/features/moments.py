"""Streamed first and second moments of activations."""

from __future__ import annotations

import torch
from torch import Tensor


class Moments:
    """Means and covariances of two sets of channels, one batch at a time.

    A channel may have several slots (the channels of a group, the positions of a flattened map): every slot has a mean
    of its own, and covariances are averages over the slots. Values are shifted by the first batch's mean before they
    are summed, so that nothing cancels.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shift: tuple[Tensor, Tensor] | None = None

    def add(self, x: Tensor, y: Tensor) -> None:
        """Count a batch of (samples × n × slots) and (samples × m × slots)."""
        if self.shift is None:
            self.shift = x.mean(0), y.mean(0)
            self.sums = [torch.zeros(t.shape[1:], dtype=torch.float64, device=t.device) for t in (x, y)]
            self.squares = [torch.zeros(t.shape[1], dtype=torch.float64, device=t.device) for t in (x, y)]
            self.cross = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64, device=x.device)
        shifted = x - self.shift[0], y - self.shift[1]
        self.count += len(x)
        for k, t in enumerate(shifted):
            self.sums[k] += t.sum(0)
            self.squares[k] += t.square().sum((0, 2))
        first, second = (t.movedim(2, 1).flatten(0, 1) for t in shifted)
        self.cross += first.T @ second

    def covariance(self) -> Tensor:
        """(n × m)."""
        mean = [s / self.count for s in self.sums]
        slots = mean[0].shape[1]
        return (self.cross / self.count - mean[0] @ mean[1].T) / slots

    def variances(self) -> tuple[Tensor, Tensor]:
        """(n,) and (m,)."""
        slots = self.sums[0].shape[1]
        found = [
            (q / self.count - (s / self.count).square().sum(1)) / slots
            for q, s in zip(self.squares, self.sums, strict=True)
        ]
        return found[0].clamp_min(0), found[1].clamp_min(0)

    def correlation(self) -> Tensor:
        """(n × m); a channel that never varies is uncorrelated with all but others that never vary."""
        var = self.variances()
        dead = [v <= 1e-12 * (q / self.count).clamp_min(1e-30) for v, q in zip(var, self.squares, strict=True)]
        std = [v.sqrt().masked_fill(d, 1.0) for v, d in zip(var, dead, strict=True)]
        corr = (self.covariance() / (std[0][:, None] * std[1][None, :])).clamp(-1, 1)
        neither, both = dead[0][:, None] | dead[1][None, :], dead[0][:, None] & dead[1][None, :]
        return corr.masked_fill(neither, 0.0).masked_fill(both, 1.0)

    def squared_distances(self) -> Tensor:
        """(n × m) mean squared differences."""
        assert self.shift is not None
        var = self.variances()
        mean = [shift.double() + s / self.count for shift, s in zip(self.shift, self.sums, strict=True)]
        apart = torch.cdist(mean[0], mean[1], compute_mode="donot_use_mm_for_euclid_dist").square() / mean[0].shape[1]
        return (var[0][:, None] + var[1][None, :] - 2 * self.covariance()).clamp_min(0) + apart
