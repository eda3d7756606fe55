"""Spend a budget where it saves most: the loss that a channel saves, per what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import OptionError
from .paths import Path, Spaces
from .sizes import NAMES, Sizes, Structure, Support

WORDS = {
    "dense": "{:,.0f} dense parameters",
    "params": "{:,.0f} effective parameters",
    "flops": "{:,.0f} operations",
    "latency": "{:.2f} times the latency of one model",
    "channels": "{:,.0f} channels",
}
ROUNDS = 8  # prices of several bounds that are tried
SHARPNESS = 4.0  # the power of what was used of a bound by which its price falls

Prices = Mapping[str, float]  # bound → what all of it costs


class BudgetError(OptionError):
    """A budget below the smallest result."""


def allocate(paths: Mapping[Spaces, Path], structure: Structure, limits: Sizes) -> dict[str, float]:
    """Space → fraction, such that the result fits the limits and little is lost.

    From the smallest sizes on, the space goes to its next size that saves most loss per price, as long as it fits. With
    several bounds the price of a step is a weighted sum of what it takes of each. A bound that is not used up was too
    dear: its weight falls, and the budget is spent anew, some times. Last, the same fraction for all spaces is tried,
    as large as it fits, and whatever is left is spent. What loses least is taken.

    Args:
        paths: elastic spaces that change together → their path.
        structure: counts results.
        limits: upper bounds.
    """
    smallest = _Allocation.at(dict.fromkeys(paths, 0), paths, structure)
    if not smallest.size.fits(limits):
        raise BudgetError(
            f"the budget of {_listed(limits)} is below the smallest result, which has "
            f"{_listed(smallest.size, limits)}: raise it, or, to go below one model's widths, use a method of "
            "generalised pruning such as 'interpolate'"
        )
    best = min(_candidates(paths, structure, limits), key=lambda found: found.loss)
    return {space: path.fractions[best.places[spaces]] for spaces, path in paths.items() for space in spaces}


@dataclass
class _Allocation:
    """A size for every space, which grows step by step.

    Attributes:
        places: spaces → where on their path they are.
        paths: spaces → their path.
        structure: counts results.
        supports: space → which models write how many channels.
        size: of the result.
        steps: spaces → what it takes to go to another place; forgotten where something next to them grew.
    """

    places: dict[Spaces, int]
    paths: Mapping[Spaces, Path]
    structure: Structure
    supports: dict[str, Support]
    size: Sizes
    steps: dict[Spaces, tuple[int, Sizes]] = field(default_factory=dict)

    @classmethod
    def at(cls, places: Mapping[Spaces, int], paths: Mapping[Spaces, Path], structure: Structure) -> _Allocation:
        supports = {s: support for g, path in paths.items() for s, support in path.supports[places[g]].items()}
        return cls(dict(places), paths, structure, supports, structure.sizes(supports))

    @property
    def loss(self) -> float:
        return math.fsum(path.losses[self.places[spaces]] for spaces, path in self.paths.items())

    def spent(self, limits: Sizes, prices: Prices) -> _Allocation:
        """Grow while something fits: along the corners of the paths, on which losses are convex, so that no better step
        hides behind a worse one; then by whatever step still fits."""
        corners = {spaces: path.corners() for spaces, path in self.paths.items()}
        everywhere = {spaces: range(len(path.fractions)) for spaces, path in self.paths.items()}
        for stops in (corners, everywhere):
            while (step := self._best(stops, limits, prices)) is not None:
                self._grow(*step)
        return self

    def _best(
        self, stops: Mapping[Spaces, Sequence[int]], limits: Sizes, prices: Prices
    ) -> tuple[Spaces, int, Sizes] | None:
        """The step that saves most loss per price."""
        best: tuple[float, Spaces, int, Sizes] | None = None
        for spaces, path in self.paths.items():
            ahead = next((t for t in stops[spaces] if t > self.places[spaces]), None)
            if ahead is None:
                continue
            more = self._more(spaces, ahead)
            if not (self.size + more).fits(limits):
                continue
            saved = path.losses[self.places[spaces]] - path.losses[ahead]
            price = sum(price * getattr(more, name) / getattr(limits, name) for name, price in prices.items())
            rate = saved / max(price, 1e-12)
            if best is None or rate > best[0]:
                best = rate, spaces, ahead, more
        return None if best is None else best[1:]

    def _more(self, spaces: Spaces, ahead: int) -> Sizes:
        known = self.steps.get(spaces)
        if known is None or known[0] != ahead:
            more = self.structure.change(self.supports, self.paths[spaces].supports[ahead])
            known = self.steps[spaces] = ahead, more
        return known[1]

    def _grow(self, spaces: Spaces, ahead: int, more: Sizes) -> None:
        self.places[spaces], self.size = ahead, self.size + more
        self.supports.update(self.paths[spaces].supports[ahead])
        near = self.structure.near(spaces)
        self.steps = {others: step for others, step in self.steps.items() if near.isdisjoint(others)}


def _candidates(paths: Mapping[Spaces, Path], structure: Structure, limits: Sizes) -> Iterator[_Allocation]:
    """Allocations that fit."""
    bounds = [name for name in NAMES if getattr(limits, name) != math.inf]
    prices = dict.fromkeys(bounds, 1.0)
    for _ in range(ROUNDS if len(bounds) > 1 else 1):
        found = _Allocation.at(dict.fromkeys(paths, 0), paths, structure).spent(limits, prices)
        yield found
        used = {name: (getattr(found.size, name) / getattr(limits, name)) ** SHARPNESS for name in bounds}
        dearest = max(prices[name] * used[name] for name in bounds)
        prices = {name: prices[name] * used[name] / dearest for name in bounds}
    for fraction in sorted({f for path in paths.values() for f in path.fractions}, reverse=True):
        places = {spaces: path.nearest(fraction) for spaces, path in paths.items()}
        uniform = _Allocation.at(places, paths, structure)
        if uniform.size.fits(limits):
            yield uniform.spent(limits, prices)
            return


def _listed(sizes: Sizes, bounds: Sizes | None = None) -> str:
    """The sizes that are bounded."""
    shown = [n for n in NAMES if getattr(bounds or sizes, n) != float("inf")]
    return ", ".join(WORDS[n].format(getattr(sizes, n)) for n in shown)
