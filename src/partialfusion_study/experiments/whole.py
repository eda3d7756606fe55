"""Whole transformers reduced to a size, stream, heads and MLPs: one of them, and the ensemble of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from ..cell import Cell
from ..cells import Compress, Parents, Shrunk, ShrunkEnsemble
from ..methods import IMAGES, OURS, MethodConfig
from ..recipes import Pair
from ..report import Row, Table, Value
from .experiment import Results
from .grids import EQUAL
from .settings import Scale, scaled

INTERPOLATION = MethodConfig("interpolate", images=IMAGES)
DELETED, TURNED = "principal directions, the smallest deleted", "principal directions, interpolated"
REDUCTIONS = {
    "channels of the smallest weights deleted": MethodConfig("magnitude", images=IMAGES),
    "channels clustered": OURS,
    "channels interpolated": INTERPOLATION,
    DELETED: MethodConfig("magnitude", by="activation", images=IMAGES, similarity="rotation"),
    TURNED: replace(INTERPOLATION, similarity="rotation"),
}
KINDS = {  # patterns of the names of the spaces
    "residual stream": ("patches",),
    "attention heads": ("blocks.*.attention.*",),
    "MLPs": ("blocks.*.mlp.*",),
}
ONE, BOTH = (0.75, 0.5), (0.75, 1.0, 1.5)  # all parameters, relative to one network
KEEP = 0.7  # of every kind
REFITS = {"": False, ", refitted": True}
Found = Shrunk | ShrunkEnsemble | Compress


@dataclass(frozen=True)
class Whole:
    """Pairs of transformers, of which the first network, and then both, are reduced.

    Attributes:
        pairs: the networks.
        scale: the scale of the study.
        tested: the number of test images; None for all.
    """

    pairs: Sequence[Pair]
    scale: Scale
    tested: int | None

    @property
    def labels(self) -> Sequence[str]:
        return (DELETED, TURNED) if self.scale == "quick" else tuple(REDUCTIONS)

    @property
    def one(self) -> tuple[float, ...]:
        return ONE[-1:] if self.scale == "quick" else ONE

    @property
    def both(self) -> tuple[float, ...]:
        return BOTH[-1:] if self.scale == "quick" else BOTH

    def parents(self) -> list[Parents]:
        return [Parents(pair, (EQUAL,), self.tested) for pair in self.pairs]

    def single(self, label: str, size: float, refit: bool) -> list[Found]:
        """Model A of every pair, within a budget."""
        return [Shrunk(pair.a, self._config(label, refit), size, self.tested) for pair in self.pairs]

    def evenly(self, label: str, refit: bool) -> list[Found]:
        """Model A of every pair, with the same fraction of every kind of space."""
        return [Compress(pair.a, self._config(label, refit), KEEP, self.tested) for pair in self.pairs]

    def ensemble(self, label: str, size: float, refit: bool) -> list[Found]:
        """Both networks of every pair, within a budget."""
        return [ShrunkEnsemble(pair, self._config(label, refit), size, self.tested) for pair in self.pairs]

    def _config(self, label: str, refit: bool) -> MethodConfig:
        return replace(scaled(REDUCTIONS[label], self.scale), refit=refit)

    def cells(self) -> list[Cell]:
        """Without those of the networks as they are."""
        groups: list[Sequence[Cell]] = []
        for label in self.labels:
            for refit in REFITS.values():
                groups += [self.single(label, size, refit) for size in self.one]
                groups += [self.evenly(label, refit)]
                groups += [self.ensemble(label, size, refit) for size in self.both]
        return [cell for group in groups for cell in group]

    def accuracy(self, results: Results, cells: Sequence[Found]) -> float:
        return fmean(results(cell)["accuracy"] for cell in cells)

    def one_table(self, results: Results) -> Table:
        rows: list[Row] = []
        for label in self.labels:
            groups = [self.single(label, size, refit) for size in self.one for refit in REFITS.values()]
            groups += [self.evenly(label, refit) for refit in REFITS.values()]
            rows.append((label, *(_value(results, cells) for cells in groups)))
        even = fmean(results(c)["ratio"] for label in self.labels for c in self.evenly(label, False))
        heads = [f"{size:.0%} of the parameters" for size in self.one]
        heads.append(f"{KEEP:.0%} of every space ({even:.0%})")
        alone = fmean(results(cell)["a"] for cell in self.parents())
        title = f"One whole network with fewer parameters: accuracy (%); the whole has {alone:.2f}"
        return Table("whole", title, ("", *(f"{head}{then}" for head in heads for then in REFITS)), tuple(rows))

    def left_table(self, results: Results) -> Table:
        """What budgets leave of every kind of space."""
        rows: list[Row] = []
        for label in self.labels:
            shares = [
                fmean(_left(results(cell)["widths"], patterns) for cell in self.single(label, size, False))
                for size in self.one
                for patterns in KINDS.values()
            ]
            rows.append((label, *(f"{share:.0%}" for share in shares)))
        columns = (f"{kind}, at {size:.0%}" for size in self.one for kind in KINDS)
        return Table("left", "What the budgets leave of the channels of one network", ("", *columns), tuple(rows))

    def both_table(self, results: Results) -> Table:
        rows: list[Row] = []
        for label in self.labels:
            groups = [self.ensemble(label, size, refit) for size in self.both for refit in REFITS.values()]
            rows.append((label, *(_value(results, cells) for cells in groups)))
        parents = [results(cell) for cell in self.parents()]
        whole = fmean(found["ensemble"][0] for found in parents)
        alone = fmean(found[name] for found in parents for name in ("a", "b"))
        heads = [f"{size:.0%} of one network's parameters" for size in self.both]
        title = (
            "The ensemble of two whole networks with fewer parameters: accuracy (%); "
            f"the ensemble (200 %) has {whole:.2f}, one network {alone:.2f}"
        )
        return Table("both", title, ("", *(f"{head}{then}" for head in heads for then in REFITS)), tuple(rows))

    def told(self, results: Results) -> str:
        """What was done, and what was best, in words."""
        parents = [results(cell) for cell in self.parents()]
        first, second, whole = (
            fmean(values) for values in zip(*((p["a"], p["b"], p["ensemble"][0]) for p in parents), strict=True)
        )
        one = {size: self._best(results, {m: self.single(m, size, True) for m in self.labels}) for size in self.one}
        both = {size: self._best(results, {m: self.ensemble(m, size, True) for m in self.labels}) for size in self.both}
        gaps = [
            self.accuracy(results, self.single(TURNED, size, refit))
            - self.accuracy(results, self.single(DELETED, size, refit))
            for size in self.one
            for refit in REFITS.values()
        ]
        below = [f"{size:.0%}" for size, (_, found) in both.items() if found < max(first, second)]
        reached = "above both networks alone"
        if below:
            reached = f"below the better network alone ({max(first, second):.2f} %) at {', '.join(below)}"
        ahead = f"{sum(gap >= 0 for gap in gaps)} of {len(gaps)}"
        return (
            "*Whole networks*: a budget for all parameters (`budget=`) decides how many channels of the stream, of the "
            "heads and of the MLPs remain, of one network by `pf.prune` and of two at equal shares by `pf.fuse`, whose "
            "refits may fill zero blocks. Heads are kept, deleted or combined as wholes. Principal directions are "
            "those of the stream and within heads; MLPs have channels in any case, and where directions are deleted, "
            "those with the smallest activations are, too. In per cent of one network's parameters, refitted: one "
            f"network of {first:.2f} % has at best {_listed(one)}; the ensemble of {whole:.2f} % has at best "
            f"{_listed(both)}, and is {reached}. Interpolated directions are level with deleted ones or ahead in "
            f"{ahead} cases on one network, by {min(gaps):+.2f} to {max(gaps):+.2f} points."
        )

    def _best(self, results: Results, groups: dict[str, list[Found]]) -> tuple[str, float]:
        found = {label: self.accuracy(results, cells) for label, cells in groups.items()}
        best = max(found, key=found.__getitem__)
        return best, found[best]


def _listed(best: dict[float, tuple[str, float]]) -> str:
    return ", ".join(f"{found:.2f} % at {size:.0%} ({label})" for size, (label, found) in best.items())


def _left(widths: dict[str, Any], patterns: Sequence[str]) -> float:
    """The part of the channels that is left of the spaces that match."""
    found = [both for name, both in widths.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return sum(after for _, after in found) / sum(before for before, _ in found)


def _value(results: Results, cells: Sequence[Found]) -> Value:
    return Value.of(results(cell)["accuracy"] for cell in cells)
