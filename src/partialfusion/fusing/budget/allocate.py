"""Spend a budget where it saves most: the loss that a channel saves, per what it costs."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import OptionError
from .paths import Path, Spaces
from .sizes import NAMES, Sizes, Structure

WORDS = {
    "dense": "{:,.0f} dense parameters",
    "params": "{:,.0f} effective parameters",
    "flops": "{:,.0f} operations",
    "latency": "{:.2f} times the latency of one model",
    "channels": "{:,.0f} channels",
}


class BudgetError(OptionError):
    """A budget below the smallest result."""


def allocate(paths: Mapping[Spaces, Path], structure: Structure, limits: Sizes) -> dict[str, float]:
    """Space → fraction, such that the result fits the limits and little is lost.

    From the smallest sizes on, the space goes to its next size that saves most loss per fraction of the tightest bound,
    as long as it fits. The losses of a space are convex along the corners of its path, so that no better step hides
    behind a worse one; what is left at the end goes to whatever still fits.

    Args:
        paths: elastic spaces that change together → their path.
        structure: counts results.
        limits: upper bounds.
    """
    at = dict.fromkeys(paths, 0)
    supports = {space: support for path in paths.values() for space, support in path.supports[0].items()}
    known: dict[Spaces, tuple[int, Sizes]] = {}  # the next size, and what it adds while nothing near changes
    size = structure.sizes(supports)
    if not size.fits(limits):
        raise BudgetError(
            f"the budget of {_listed(limits)} is below the smallest result, which has {_listed(size, limits)}: "
            "raise it, or, to go below one model's widths, use a method of generalised pruning such as 'interpolate'"
        )
    for steps in (
        {s: p.corners() for s, p in paths.items()},
        {s: list(range(len(p.fractions))) for s, p in paths.items()},
    ):
        while True:
            best: tuple[float, Spaces, int, Sizes] | None = None
            for spaces, path in paths.items():
                ahead = next((t for t in steps[spaces] if t > at[spaces]), None)
                if ahead is None:
                    continue
                if known.get(spaces, (0,))[0] != ahead:
                    known[spaces] = ahead, structure.change(supports, path.supports[ahead])
                more = known[spaces][1]
                grown = size + more
                if not grown.fits(limits):
                    continue
                saved = path.losses[at[spaces]] - path.losses[ahead]
                price = max(more.used(limits), 1e-12)
                if best is None or saved / price > best[0]:
                    best = (saved / price, spaces, ahead, grown)
            if best is None:
                break
            _, spaces, ahead, size = best
            at[spaces] = ahead
            supports.update(paths[spaces].supports[ahead])
            near = structure.near(spaces)
            known = {other: found for other, found in known.items() if not near & set(other)}
    return {space: path.fractions[at[spaces]] for spaces, path in paths.items() for space in spaces}


def _listed(sizes: Sizes, bounds: Sizes | None = None) -> str:
    """The sizes that are bounded."""
    shown = [n for n in NAMES if getattr(bounds or sizes, n) != float("inf")]
    return ", ".join(WORDS[n].format(getattr(sizes, n)) for n in shown)
