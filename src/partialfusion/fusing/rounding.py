"""The sizes that a space may have: the one place that says how many channels a fraction means.

Convolutions and matrix products are computed for so many channels at a time; a width in between pays for the next
multiple. So fractions are rounded to sizes at which every part of a space, the isolated channels of each model and the
fused ones, is a multiple of what the kernels like.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..blueprint import Blueprint, Space
from ..core.literals import RoundTo
from ..core.scalars import is_whole
from ..core.text import shorten
from ..errors import OptionError

CONVOLUTIONS, OTHERS = 16, 8  # channels that kernels like: for convolutions on a CPU, and elsewhere
SENSIBLE = 4  # "auto" leaves a space at least so many sizes above one model's, and rounds it to less or not at all
FEWEST = 2  # what a number that the user gave leaves it: one size between one model's and the ensemble


def check_round_to(given: object) -> RoundTo:
    """A user's option: "auto", or a whole number from 1 on."""
    if isinstance(given, str) and given == "auto":
        return "auto"
    if not is_whole(given) or int(given) < 1:
        raise OptionError(f"round_to={given!r} must be 'auto' or a whole number of channels from 1 on, such as 16")
    return int(given)


@dataclass(frozen=True)
class Grid:
    """The sizes that a space may have.

    Attributes:
        widths: what it has in each model, in steps.
        step: the channels in one step, more than one where its width changes by heads or the like.
        multiple: every part has a multiple of so many steps; where it is 1, fractions of channels are rounded as late
            as possible.
        whole: sizes are fractions of so many steps, such as the heads of the last model; 0 if they may be any.
    """

    widths: tuple[int, ...]
    step: int = 1
    multiple: int = 1
    whole: int = 0

    @property
    def channels(self) -> int:
        """Every part has a multiple of so many channels."""
        return self.step * self.multiple

    @property
    def parts(self) -> int:
        """Sizes above one model's, up to the ensemble: the multiples that all models have in common."""
        return max(1, math.gcd(*self.widths) // self.multiple)

    def alpha(self, asked: float) -> float:
        """The nearest isolated fraction; of two that are as near, the larger. Below 0, the nearest smaller width."""
        if asked < 0:
            return self.keep(1 + asked) - 1
        if self.multiple > 1:
            return _nearest(asked * self.parts) / self.parts
        return round(asked * self.whole) / self.whole if self.whole else asked

    def keep(self, asked: float) -> float:
        """The nearest fraction of the last model's width, of two that are as near the larger; at least one multiple.
        All of it is such a size, too."""
        last = self.widths[-1]
        if self.multiple > 1:
            rounded = self.multiple * max(1, _nearest(asked * last / self.multiple))
            return 1.0 if abs(last - asked * last) <= abs(rounded - asked * last) else rounded / last
        return round(asked * self.whole) / self.whole if self.whole else asked

    def alphas(self, most: int) -> list[float]:
        """Isolated fractions from 0 to 1, about as many as asked for."""
        return _spread(self.widths[-1] if self.multiple == 1 else self.parts, most)

    def kept(self, most: int) -> list[float]:
        """Fractions of the last model's width from above 0 to 1, about as many as asked for."""
        if self.multiple == 1:
            return _spread(self.widths[-1], most)[1:]
        return sorted({self.keep(fraction) for fraction in _spread(self.widths[-1], most)})

    def steps(self, size: float, *, keep: bool) -> int:
        """The width of a reduced space, in steps.

        Args:
            size: the fraction of the last model that is kept, or alpha. Below 0, alpha is what the result is smaller
                than the last model.
            keep: whether the size is a fraction that is kept.
        """
        *others, last = self.widths
        if keep or size < 0:
            return max(1, round((size if keep else 1 + size) * last))
        return last + sum(round(size * n) for n in others)


def _nearest(number: float) -> int:
    """The nearest whole number, of two that are as near the larger."""
    return math.floor(number + 0.5)


def _spread(count: int, most: int) -> list[float]:
    """Fractions that make different whole numbers of `count`, 0 to 1."""
    return [k / count for k in sorted({round(count * k / most) for k in range(most + 1)})]


def grids(
    round_to: RoundTo, blueprint: Blueprint, widths: Mapping[str, Sequence[int]], device: str, *, fuses: bool
) -> dict[str, Grid]:
    """Space → the sizes that it may have; spaces whose widths change together have the same number of steps.

    Args:
        round_to: what the user asks for.
        blueprint: of the last model.
        widths: space → its channels in each model.
        device: the type of the device that the models are on.
        fuses: several models are fused, so that a multiple must divide the widths of all of them; one that is pruned
            may get any.
    """
    found = {}
    for space in blueprint:
        together = [s for s in blueprint if space.group is not None and s.group == space.group] or [space]
        leading = max(together, key=lambda s: s.width)
        steps = tuple(n // leading.step for n in widths[leading.name])
        if round_to == "auto":
            multiple = _suitable(_liked(leading, blueprint, device), leading.step, steps)
        else:
            multiple = _possible(round_to, leading.step, steps, fuses=fuses)
        own = tuple(n // space.step for n in widths[space.name])
        whole = own[-1] if space.step > 1 or space.bundle is not None else 0
        found[space.name] = Grid(own, space.step, multiple, whole)
    return found


@dataclass(frozen=True)
class Rounding:
    """What rounding did to the sizes of a result.

    Attributes:
        multiples: channels → how many spaces have parts that are a multiple of so many; spaces that are not rounded
            are left out.
        taken: what became of the sizes that were asked for, in words; empty where they are what they were.
        unmet: the spaces whose parts cannot all be the multiple that the user gave, with theirs.
    """

    multiples: Mapping[int, int]
    taken: str = ""
    unmet: tuple[str, ...] = ()

    def not_met(self, round_to: RoundTo) -> str:
        """What to tell the user where the widths do not allow the multiple that was given."""
        return f"not in multiples of {round_to}, which their widths do not allow: {shorten(self.unmet)}"

    def __str__(self) -> str:
        spaces = [f"{n} space{'s' * (n > 1)} in multiples of {channels}" for channels, n in self.multiples.items()]
        return ", ".join(spaces) + (f"; {self.taken}" if self.taken else "")


NOT_ROUNDED = Rounding({})


def rounding(
    round_to: RoundTo,
    blueprint: Blueprint,
    found: Mapping[str, Grid],
    asked: Mapping[str, float],
    taken: Mapping[str, float],
    *,
    keep: bool,
) -> Rounding:
    """What there is to say of the sizes of a result.

    Args:
        round_to: what the user asked for.
        blueprint: of the last model.
        found: space → the sizes that it may have.
        asked: elastic space → the size that was asked for.
        taken: elastic space → its size in the result.
        keep: whether these are the fractions that are kept, or alphas.
    """
    groups = [group for group in blueprint.groups if all(space in taken for space in group)]
    leading = [max(group, key=lambda s: blueprint[s].width) for group in groups]
    reduced = [s for s in leading if taken[s] != 1.0 and (keep or taken[s] != 0.0)]
    counted: dict[int, int] = {}
    for space in sorted(reduced, key=lambda s: -found[s].channels):
        if found[space].multiple > 1:
            counted[found[space].channels] = counted.get(found[space].channels, 0) + 1
    short = () if round_to == "auto" else tuple(s for s in reduced if found[s].channels % round_to)
    name = "keep" if keep else "alpha"
    moved = [s for s in leading if found[s].multiple > 1 and abs(taken[s] - asked[s]) > 1e-9]
    words = f"{name}={_span([asked[s] for s in moved])} became {_span([taken[s] for s in moved])}" if moved else ""
    return Rounding(counted, words, tuple(f"{s} ({found[s].channels})" for s in short))


def _span(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.3g}", f"{max(numbers):.3g}"
    return low if low == high else f"{low} to {high}"


def _liked(space: Space, blueprint: Blueprint, device: str) -> int:
    """The multiple of channels that suits the kernels: of convolutions, whose weights have more than two axes, or of
    matrix products."""
    convolves = any(len(blueprint.shapes[b.parameter]) > 2 for b in space.bindings if b.parameter in blueprint.shapes)
    return CONVOLUTIONS if convolves and device == "cpu" else OTHERS


def _suitable(liked: int, step: int, widths: Sequence[int]) -> int:
    """Steps, so that parts are a multiple of the channels that kernels like, or of half as many where the space is
    small; 1 where it is too small for that, or has another number of channels already."""
    common = math.gcd(*widths)
    for channels in range(liked, OTHERS - 1, -OTHERS):
        steps = channels // math.gcd(channels, step)
        if common % steps == 0 and common // steps >= SENSIBLE:
            return steps
    return 1


def _possible(channels: int, step: int, widths: Sequence[int], *, fuses: bool) -> int:
    """Steps, so that parts are a multiple of `channels`, or else of the largest divisor that the widths allow."""
    steps = channels // math.gcd(channels, step)
    common = math.gcd(*widths)
    fitting = (
        d for d in range(steps, 0, -1) if steps % d == 0 and common // d >= FEWEST and not (fuses and common % d)
    )
    return next(fitting, 1)
