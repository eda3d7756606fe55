"""Clustering: speed of the stochastic method against plain NumPy, and what the default finds in a fraction of its time.

python -m benchmarks.clustering 1000 draws 1,000 restarts where the published experiments draw 50,000.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from partialfusion.core.text import table
from partialfusion.demo import DigitsNet, specialists
from partialfusion.solvers import (
    Clustering,
    cluster,
    lloyd,
    squared_distances,
    stochastic_ward,
    ward,
    zip_pairs,
)

from .timing import seconds

RESTARTS = 50_000
CHOICES = 5


def plain_restart(squared: np.ndarray, k: int, rng: np.random.Generator) -> float:
    """One restart of the published method in plain NumPy, all costs anew at every step; returns the inertia."""
    d, n = squared.copy(), len(squared)
    mass, labels = np.ones(n), np.arange(n)
    np.fill_diagonal(d, np.inf)
    for _ in range(n - k):
        growth = d * (mass[:, None] * mass[None, :] / (mass[:, None] + mass[None, :]))
        cost = np.where(np.tri(n, dtype=bool), np.inf, np.sqrt(2 * growth))
        least = cost.min(1)
        rows = np.argsort(least)[:CHOICES]
        rows = rows[np.isfinite(least[rows])]
        excess = least[rows] - least[rows].min()
        chance = np.exp(-excess / max(excess.mean(), 1e-300))
        i = int(rng.choice(rows, p=chance / chance.sum()))
        j = int(cost[i].argmin())
        a, b = mass[i] / (mass[i] + mass[j]), mass[j] / (mass[i] + mass[j])
        joined = a * d[i] + b * d[j] - a * b * d[i, j]
        d[i], d[:, i], d[j], d[:, j] = joined, joined, np.inf, np.inf
        d[i, i] = np.inf
        d[i, j] = d[j, i] = np.inf
        mass[i] += mass[j]
        labels[labels == j] = i
    return plain_lloyd(squared, np.unique(labels, return_inverse=True)[1], k)


def plain_lloyd(squared: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Lloyd's iteration on squared distances; returns the inertia."""
    while True:
        member = np.eye(k)[labels]
        count = np.maximum(member.sum(0), 1)
        within = np.einsum("ic,ij,jc->c", member, squared, member, optimize=True) / 2
        nearest = (squared @ member / count - within / count**2 + 1e300 * (member.sum(0) == 0)).argmin(1)
        if (nearest == labels).all():
            return float((within / count).sum())
        labels = nearest


def cpu(function: Callable[[], Clustering]) -> tuple[Clustering, float]:
    """A result and its processor time over all threads, which other processes and the number of cores do not change."""
    start = time.process_time()
    found = function()
    return found, time.process_time() - start


def noisy(n: int, seed: int = 0) -> np.ndarray:
    """Squared distances of rows that have near neighbours, as channels do."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n // 2, 64))[rng.integers(0, n // 2, n)] + 0.8 * rng.normal(size=(n, 64))
    return squared_distances(x)


def speeds() -> list[tuple[object, ...]]:
    rows = []
    for n, k, restarts, plain in ((200, 140, 2000, 20), (1024, 614, 40, 1)):
        squared, rng = noisy(n), np.random.default_rng(0)
        stochastic_ward(squared, k, restarts=1)
        ours = cpu(lambda: stochastic_ward(squared, k, restarts=restarts))[1] / restarts  # noqa: B023
        start = time.process_time()
        for _ in range(plain):
            plain_restart(squared, k, rng)
        theirs = (time.process_time() - start) / plain
        rows.append((f"{n} → {k}", f"{1e3 * ours:.2f} ms", f"{1e3 * theirs:.1f} ms", f"{theirs / ours:.0f}×"))
    return rows


def activations(seed: int) -> dict[str, np.ndarray]:
    """The union of two specialists' hidden channels on a thousand training images, before and after GELU."""
    pair = specialists(seed)
    images = torch.cat([pair.data_a.images, pair.data_b.images])[:1000]
    found: dict[str, list[torch.Tensor]] = {}
    with torch.no_grad():
        for net in (pair.a, pair.b):
            assert isinstance(net, DigitsNet)
            x = images
            for name in ("hidden1", "hidden2", "hidden3"):
                before = getattr(net, name)(x)
                x = F.gelu(before)
                found.setdefault(f"{name} before GELU", []).append(before.T)
                found.setdefault(f"{name} after GELU", []).append(x.T)
    return {name: torch.cat(parts).double().numpy() for name, parts in found.items()}


def inertia(squared: np.ndarray, labels: np.ndarray) -> float:
    """The inertia of a clustering of equal masses, whatever its solver compared."""
    member = np.eye(labels.max() + 1)[labels]
    return float((np.einsum("ic,ij,jc->c", member, squared, member, optimize=True) / 2 / member.sum(0)).sum())


def quality(restarts: int) -> list[tuple[object, ...]]:
    rows = []
    for name, features in activations(0).items():
        squared = squared_distances(features)
        n = len(features)
        for k in (n // 2, round(0.7 * n)):
            found, quick = cpu(lambda: cluster(squared, k))  # noqa: B023
            best, slow = cpu(lambda: stochastic_ward(squared, k, restarts=restarts))  # noqa: B023
            others = [best, ward(squared, k), lloyd(squared, k, restarts=100)]
            zipped = inertia(squared, zip_pairs(np.cov(features), k).labels)
            gaps = [f"{100 * (v / found.inertia - 1):+.2f} %" for v in (*(o.inertia for o in others), zipped)]
            fraction = f"{100 * quick / slow:.2f} %"
            rows.append((name, f"{n} → {k}", *gaps, f"{slow:.2f} s", f"{1e3 * quick:.0f} ms", fraction))
    return rows


def main(restarts: int = RESTARTS) -> None:
    small = noisy(20)
    for warm in (cluster, stochastic_ward, lloyd, ward):
        warm(small, 10)
    print(table(("a stochastic restart, one core", "compiled", "plain NumPy", "ratio"), speeds(), align=">>>>"))
    large = noisy(4096)
    print(f"\ngreedy Ward, 4096 → 2458: {seconds(lambda: ward(large, 2458), 1):.2f} s\n")
    header = ("union of two digits networks", "channels", f"best of {restarts:,}", "greedy Ward", "Lloyd, best of 100")
    print(table((*header, "ZipIt", "restarts", "cluster", "fraction"), quality(restarts), align="<>>>>>>>>"))
    print("\nInertia above that of `cluster`; processor time, and the fraction of it that `cluster` takes.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
