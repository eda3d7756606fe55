"""Plan templates: what is matched with what, before the shares of the models enter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..core.literals import Convention, Mix
from .choice import Choice, reduce_union
from .coupling import Coupling
from .pair import reference_frames
from .reduction import Plan, Reduction, merge


@dataclass(frozen=True)
class PlanTemplate:
    """The matching of all spaces; every mix makes a plan of it, without another search.

    Attributes:
        widths: space → its channels in each model.
        couplings: space → the coupling of each model but the last with the last one.
        choices: the spaces that generalised pruning decides → what becomes of the union's channels there.
        mix: the shares that the choices were made for; for other shares their masses are scaled.
        convention: the convention of the kernel pairs.
        costs: space → matching cost of the couplings, to record.
        sweeps: how many sweeps the alignment made.
        converged: whether the alignment converged.
    """

    widths: Mapping[str, Sequence[int]]
    couplings: Mapping[str, Sequence[Coupling]]
    choices: Mapping[str, Choice]
    mix: Mix
    convention: Convention
    costs: Mapping[str, float] = field(default_factory=dict)
    sweeps: int = 0
    converged: bool = True

    def plan(self, mix: Mix) -> Plan:
        """The plan for the given shares of the models."""
        return Plan({space: self._reduction(space, mix) for space in self.widths}, mix, self.convention)

    def with_couplings(self, couplings: Mapping[str, Sequence[Coupling]], costs: Mapping[str, float]) -> PlanTemplate:
        """The template with some spaces coupled anew, whatever decided them before; all others stay as they are.

        A single model has nothing to couple: there, the spaces keep all their channels.
        """
        choices = {s: c for s, c in self.choices.items() if s not in couplings}
        for space in couplings if len(self.mix) == 1 else ():
            width = self.widths[space][0]
            choices[space] = Choice.of_labels(np.arange(width), np.ones(width))
        return replace(self, couplings={**self.couplings, **couplings}, choices=choices, costs={**self.costs, **costs})

    def _reduction(self, space: str, mix: Mix) -> Reduction:
        couplings, widths, choice = self.couplings[space], self.widths[space], self.choices.get(space)
        if choice is None:
            cost = self.costs.get(space, 0.0)
            return merge(couplings, mix, self.convention, cost=cost, sweeps=self.sweeps, converged=self.converged)
        if mix != self.mix:
            choice = choice.scaled(np.repeat(np.asarray(mix) / np.asarray(self.mix), widths))
        frames = reference_frames(couplings, self.convention, widths[-1])
        return reduce_union(choice, widths, self.convention, frames=frames)
