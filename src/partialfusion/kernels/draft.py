"""Drafts: what is matched with what, before the shares of the models enter. One draft gives a plan for every mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..core.literals import Convention, Mix
from .choice import Choice, reduce_union
from .coupling import Coupling
from .pair import KernelPair
from .reduction import Plan, Reduction, merge


class Match(Protocol):
    """What is matched in one space."""

    def reduction(self, mix: Mix) -> Reduction:
        """The reduction of the space for some shares of the models."""
        ...


@dataclass(frozen=True)
class Coupled:
    """Every model but the last is coupled with the last; shares play no part in finding that.

    Attributes:
        couplings: one per model but the last.
        convention: of the kernel pairs.
        cost, sweeps, converged: of the alignment, to record.
    """

    couplings: Sequence[Coupling]
    convention: Convention
    cost: float = 0.0
    sweeps: int = 0
    converged: bool = True

    def reduction(self, mix: Mix) -> Reduction:
        return merge(self.couplings, mix, self.convention, cost=self.cost, sweeps=self.sweeps, converged=self.converged)


@dataclass(frozen=True)
class Chosen:
    """A choice over the channels of all models, made for some shares; for others its masses are scaled.

    Attributes:
        choice: what goes where.
        mix: the shares it was made for.
        widths: channels of the space in each model.
        convention: of the kernel pairs.
        world: per model, its place in the last model's world.
    """

    choice: Choice
    mix: Mix
    widths: Sequence[int]
    convention: Convention
    world: Sequence[KernelPair] = ()

    def reduction(self, mix: Mix) -> Reduction:
        choice = self.choice
        if mix != self.mix:
            scale = np.asarray(mix) / np.asarray(self.mix)
            choice = choice.scaled(np.repeat(scale, self.widths))
        return reduce_union(choice, self.widths, self.convention, world=self.world)


@dataclass(frozen=True)
class Draft:
    """Space name → what is matched there."""

    matches: Mapping[str, Match]
    convention: Convention

    def plan(self, mix: Mix) -> Plan:
        """The plan for some shares of the models."""
        return Plan({name: match.reduction(mix) for name, match in self.matches.items()}, mix, self.convention)
