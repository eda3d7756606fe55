"""Reductions and plans: the kernel pairs of all models, space by space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.arrays import Floats
from ..core.literals import Convention
from .coupling import Coupling
from .pair import KernelPair, reference_frames


@dataclass(frozen=True)
class Reduction:
    """How one space of the union becomes one space of the result.

    Attributes:
        pairs: one kernel pair per model.
        fused: target channels that more than one model writes.
        isolated: per model, the target channels that only it writes.
        frames: per model, its kernel pair into the reference frame, the last model's channels, where every channel is
            matched; the data-free normalisation rule compares channels there.
        cost: matching cost of the fused channels, in the units of the features.
        sweeps: how many sweeps the alignment made.
        converged: whether its last sweep changed nothing.
    """

    pairs: tuple[KernelPair, ...]
    fused: int
    isolated: tuple[int, ...]
    frames: tuple[KernelPair, ...]
    cost: float = 0.0
    sweeps: int = 0
    converged: bool = True

    @property
    def width(self) -> int:
        return self.pairs[0].targets

    @property
    def combined(self) -> int:
        """Target channels that are made of several source channels."""
        entries = np.concatenate([p.target for p in self.pairs])
        return int((np.bincount(entries, minlength=self.width) > 1).sum())

    @property
    def deleted(self) -> int:
        """Source channels that enter no target channel."""
        return sum(p.sources - len(np.unique(p.source)) for p in self.pairs)

    @property
    def dense_readers(self) -> frozenset[str]:
        """The weights that read every source channel from all target channels."""
        return frozenset(w for p in self.pairs if p.interpolation is not None for w in p.interpolation.maps)

    def support(self) -> np.ndarray:
        """(width × models), whether the model writes the target channel."""
        table = np.zeros((self.width, len(self.pairs)), bool)
        for m, pair in enumerate(self.pairs):
            table[pair.target, m] = True
        return table


@dataclass(frozen=True, repr=False)
class Plan(Mapping[str, Reduction]):
    """Space name → reduction for the whole network, with the shares of the models it was made for.

    Attributes:
        reductions: space → reduction.
        mix: the share of each model.
        convention: the convention of the kernel pairs.
    """

    reductions: Mapping[str, Reduction]
    mix: tuple[float, ...]
    convention: Convention = "value"

    def __getitem__(self, space: str) -> Reduction:
        return self.reductions[space]

    def __iter__(self) -> Iterator[str]:
        return iter(self.reductions)

    def __len__(self) -> int:
        return len(self.reductions)

    def __repr__(self) -> str:
        widths = ", ".join(f"{name}: {r.fused} fused + {sum(r.isolated)} isolated" for name, r in self.items())
        return f"Plan({widths})"

    @property
    def models(self) -> int:
        return len(self.mix)

    @property
    def converged(self) -> bool:
        return all(r.converged for r in self.values())

    @property
    def sweeps(self) -> int:
        return max((r.sweeps for r in self.values()), default=0)

    @property
    def cost(self) -> float:
        return sum(r.cost for r in self.values())


def merge(
    couplings: Sequence[Coupling],
    mix: Sequence[float],
    convention: Convention = "value",
    *,
    cost: float = 0.0,
    sweeps: int = 0,
    converged: bool = True,
) -> Reduction:
    """The reduction of one space from the couplings of every other model with the last one.

    Target channels are ordered: isolated of model 0, isolated of model 1, …, fused (in the order of the last model's
    channels), isolated of the last model.

    Value convention: a target is the average of its sources, a source reads its target's value; both kernels have
    rows that sum to one. Mass convention (the paper's): a target is the sum of the mass it receives, a source reads
    an average. A channel that is fused only in part is split as in the paper's appendix: into a fused and an
    isolated channel, in proportion to its mass.

    Args:
        couplings: one per model but the last.
        mix: the share of each model, summing to one.
        convention: "value" or "mass".
        cost: matching cost to record.
        sweeps: number of solves to record.
        converged: convergence to record.
    """
    value = convention == "value"
    last = len(couplings)
    m = couplings[0].shape[1]
    fractions = [c.fused_fraction() for c in couplings]
    col_fused = np.max([cols for _, cols in fractions], axis=0)
    contributes = np.array([cols > 0 for _, cols in fractions] + [col_fused > 0])
    weight = _contributions(contributes, np.asarray(mix))

    alone = [np.flatnonzero(rows < 1) for rows, _ in fractions]
    merged, rest = np.flatnonzero(col_fused > 0), np.flatnonzero(col_fused < 1)
    starts = np.cumsum([0] + [len(a) for a in alone])
    place = np.empty(m, np.int64)
    place[merged] = starts[-1] + np.arange(len(merged))
    rest_at = starts[-1] + len(merged) + np.arange(len(rest))
    targets = int(starts[-1] + len(merged) + len(rest))

    pairs = []
    for k, coupling in enumerate(couplings):
        rows, cols, mass = coupling.fused_part()
        fraction = fractions[k][0]
        of_row = mass / coupling.row_mass[rows]
        of_col = mass / np.bincount(cols, mass, m)[cols]
        write = weight[k, cols] * (of_col if value else of_row)
        read = of_row if value else of_col
        left, ones = 1 - fraction[alone[k]], np.ones(len(alone[k]))
        pairs.append(
            KernelPair(
                target=np.concatenate([starts[k] + np.arange(len(alone[k])), place[cols]]),
                source=np.concatenate([alone[k], rows]),
                write=np.concatenate([ones if value else left, write]),
                read=np.concatenate([left if value else ones, read]),
                targets=targets,
                sources=coupling.shape[0],
            )
        )
    part, left = col_fused[merged], 1 - col_fused[rest]
    own = weight[last, merged]
    pairs.append(
        KernelPair(
            target=np.concatenate([place[merged], rest_at]),
            source=np.concatenate([merged, rest]),
            write=np.concatenate([own, np.ones(len(rest))] if value else [own * part, left]),
            read=np.concatenate([part, left] if value else [np.ones(len(merged)), np.ones(len(rest))]),
            targets=targets,
            sources=m,
        )
    )
    return Reduction(
        pairs=tuple(pairs),
        fused=len(merged),
        isolated=(*(len(a) for a in alone), len(rest)),
        frames=reference_frames(couplings, convention, m),
        cost=cost,
        sweeps=sweeps,
        converged=converged,
    )


def _contributions(contributes: np.ndarray, mix: Floats) -> Floats:
    """(models × channels): the share of each contributing model in a fused channel, summing to one per channel.

    Where all contributors have share zero they count equally: the channel then reaches no output, but it must not
    be undefined.
    """
    weight = np.where(contributes, mix[:, None], 0.0)
    total = weight.sum(0)
    weight = np.where(total > 0, weight, contributes)
    total = weight.sum(0)
    return weight / np.where(total > 0, total, 1.0)
