"""The result of a fusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from ..blueprint import Blueprint, Space
from ..core.inputs import Signature
from ..core.text import shorten, table
from ..kernels import Plan
from ..rotation import Rotations
from ..surgery import AppliedPlan, Count
from ..surgery.verify import WITHOUT_NUMBERS
from .methods import Interpolate
from .mixing import Mixing
from .options import Recipe
from .rounding import NOT_ROUNDED, Rounding
from .shortfall import Averaged


@dataclass(frozen=True)
class Latency:
    """The time of one call of a result with the example inputs, relative to the last model, and its bounds.

    Attributes:
        ratio: the time.
        bound: what the budget allows.
        ensemble: the time of the models one by one, which no result should exceed.
    """

    ratio: float
    bound: float
    ensemble: float = math.inf

    @property
    def limit(self) -> float:
        return min(self.bound, self.ensemble)

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit

    @property
    def rank(self) -> tuple[bool, float]:
        """Smaller is better: what holds before what does not, then what is nearest to the limit."""
        return not self.holds, abs(self.ratio - self.limit)

    def __str__(self) -> str:
        kept = "within" if self.ratio <= self.bound else "OVER"
        found = f"latency: {self.ratio:.2f}× one model for the example inputs, {kept} the budget of {self.bound:g}"
        if math.isinf(self.ensemble):
            return found
        if self.ratio <= self.ensemble:
            return f"{found}; the models one by one take {self.ensemble:.2f}×"
        return f"{found}; SLOWER than the models one by one ({self.ensemble:.2f}×), and no faster size was found"


@dataclass(frozen=True)
class SpaceSummary:
    """One space of a result.

    Attributes:
        before, after: its width in the last source and in the result.
        fused: channels of the result that several models share.
        isolated: per model, channels of the result that it alone writes.
        combined: channels of the result that are made of several.
        deleted: channels of the sources that are in none of the result.
        cost: cost of the matching or clustering, in the units of the features.
    """

    name: str
    kind: str
    before: int
    after: int
    fused: int
    isolated: tuple[int, ...]
    combined: int
    deleted: int
    cost: float


@dataclass(frozen=True, repr=False)
class Summary:
    """What became of every space, the parameters, and whether the search converged. Prints as a table."""

    recipe: Recipe
    spaces: tuple[SpaceSummary, ...]
    count: Count
    sweeps: int
    converged: bool
    cost: float
    unseen: tuple[str, ...] = ()
    averaged: str = ""
    shortfall: str = ""
    changes: tuple[str, ...] = ()
    unrepaired: str = ""
    unrefitted: str = ""
    unused: str = ""
    latency: Latency | None = None
    operations: float | None = None
    not_interpolated: tuple[str, ...] = ()
    rotated: str = ""
    unrotated: str = ""
    rounding: Rounding = NOT_ROUNDED
    compared: str = ""
    unchecked: str = ""

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        columns = _columns(self.recipe)
        rows = [[show(s) for show in columns.values()] for s in self.spaces]
        return "\n".join(
            [
                table(tuple(columns), rows, align="<<" + ">" * (len(columns) - 2)),
                self._how(),
                str(self.count),
                *(
                    [f"nearest to the models of those tried (squared distance): {self.compared}"]
                    if self.compared
                    else []
                ),
                *([f"directions instead of channels: {self.rotated}"] if self.rotated else []),
                *([f"rounded: {self.rounding}"] if str(self.rounding) else []),
                *([] if self.operations is None else [f"operations: {self.operations:.2f}× one model"]),
                *([] if self.latency is None else [str(self.latency)]),
                *self._notes(),
            ]
        )

    def _notes(self) -> list[str]:
        """What was asked for and could not be done."""
        unseen = ", ".join(self.unseen)
        notes = [f"matched by weights, since no activations were seen: {unseen}"] if unseen else []
        notes += [f"only averaged, whatever the size: {self.averaged}"] if self.averaged else []
        notes += [f"not repaired, used in several ways or by no layer: {self.unrepaired}"] if self.unrepaired else []
        notes += [self.rounding.not_met(self.recipe.round_to)] if self.rounding.unmet else []
        notes += [f"compared by channels, for they may not be rotated: {self.unrotated}"] if self.unrotated else []
        unfit = self.unrefitted
        notes += [f"not refitted, since no layer that can be fitted uses them: {unfit}"] if unfit else []
        notes += [f"not used in evaluation mode, so averaged as it stands: {self.unused}"] if self.unused else []
        notes += [f"not checked on numbers: {self.unchecked}"] if self.unchecked else []
        return [*notes, *self.not_interpolated, *[self.shortfall] * bool(self.shortfall), *self.changes]

    def _how(self) -> str:
        recipe = self.recipe
        refitted = f"; refitted with ridge {recipe.refit:g}{self._zeros()}" if recipe.refit else ""
        if recipe.pruning is None:
            state = "converged" if self.converged else "NOT converged"
            how = f"{recipe.align}: {state} after {self.sweeps} sweep{'s' * (self.sweeps != 1)}"
            return f"{recipe.method}, {recipe.features} features, {how}, cost {self.cost:.4g}{refitted}"
        state = "" if self.converged else "; interrupted, the best found until then"
        noise = recipe.features == "weights" and isinstance(recipe.pruning, Interpolate)
        features = "activations of noise, for want of data" if noise else f"{recipe.features} features"
        return f"{recipe.pruning}, {features}, cost {self.cost:.4g}{state}{refitted}"

    def _zeros(self) -> str:
        """What refitting did with the zero blocks, where there were any."""
        apart = len(self.recipe.mix) > 1 and any(any(s.isolated) for s in self.spaces)
        return f", zero blocks {'filled' if self.recipe.zeros == 'free' else 'kept'}" if apart else ""


def _columns(recipe: Recipe) -> dict[str, Callable[[SpaceSummary], object]]:
    """What the table shows: models that are fused, channels that are combined or deleted, as the method can do."""
    columns: dict[str, Callable[[SpaceSummary], object]] = {
        "space": lambda s: s.name,
        "kind": lambda s: s.kind,
        "before": lambda s: s.before,
        "after": lambda s: s.after,
    }
    if len(recipe.mix) > 1:
        columns |= {"fused": lambda s: s.fused, "isolated": lambda s: " + ".join(map(str, s.isolated))}
    if recipe.pruning is not None:
        columns |= {"combined": lambda s: s.combined, "deleted": lambda s: s.deleted}
    return columns | {"cost": lambda s: f"{s.cost:.4g}"}


@dataclass(frozen=True, repr=False)
class Fusion:
    """A fused model with the plan that made it.

    Attributes:
        model: an ordinary module of the last source's class.
        plan: space → reduction; see what was fused with what.
        blueprints: one per source.
        recipe: the options.
        count: dense and effective parameters.
        sources: the models it was made of.
        rotations: how the models were rotated, where directions were compared instead of channels.
        equivalents: what the plan applies to: models that compute what the sources do, rotated as `rotations` say.
        inputs: how they are called.
        mixing: the mixes that were measured, where mix was "auto".
        unseen: spaces that were to be matched by activations and were matched by their weights, since the data showed
            none of them.
        shortfall: by how much the result misses the ensemble where everything is kept apart, and why; empty where it is
            the ensemble, or where something is fused.
        changes: how the result's modules differ from the last source's other than by their widths.
        latency: the time of one call as it was measured, where a budget bounds it.
        operations: those of one call relative to the last model, where a budget found the sizes.
        unrepaired: parameters whose channels were to get the spread of their sources and could not.
        unrefitted: weights that were to be refitted and could not.
        rounding: what rounding to multiples of channels did to the sizes.
        compared: method → how far its outputs are from the models' on the data, relative to their spread, where
            several methods were tried, "permutation" and "rotation" where channels and directions were, or both as in
            "cluster, rotation"; the nearest was taken.
    """

    model: nn.Module
    plan: AppliedPlan
    blueprints: tuple[Blueprint, ...]
    recipe: Recipe
    count: Count
    sources: tuple[nn.Module, ...]
    inputs: Signature = field(default_factory=Signature)
    mixing: Mixing | None = None
    unseen: tuple[str, ...] = ()
    shortfall: str = ""
    changes: tuple[str, ...] = ()
    latency: Latency | None = None
    operations: float | None = None
    unrepaired: tuple[str, ...] = ()
    unrefitted: tuple[str, ...] = ()
    rotations: Rotations | None = None
    equivalents: tuple[nn.Module, ...] = ()
    rounding: Rounding = NOT_ROUNDED
    compared: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.equivalents:
            object.__setattr__(self, "equivalents", self.sources)

    @property
    def rotated(self) -> tuple[str, ...]:
        """The spaces whose directions were compared instead of their channels."""
        return () if self.rotations is None else self.rotations.spaces

    @property
    def unrotated(self) -> tuple[str, ...]:
        """Streams and spaces of heads whose channels were compared all the same, for they may not be rotated."""
        return () if self.rotations is None else self.rotations.left

    @property
    def layout(self) -> Mapping[str, Space]:
        """Where the channels of every space sit in the result."""
        return self.plan.layout

    @property
    def blueprint(self) -> Blueprint:
        """Of the last source, whose class and reference frame the result has."""
        return self.blueprints[-1]

    def __repr__(self) -> str:
        recipe = self.recipe
        size = f"keep={recipe.keep}" if recipe.keep is not None else f"alpha={recipe.alpha}, mix={recipe.mix}"
        large = f"{self.count.ratio:.2f}× one model, {self.count.effective_ratio:.2f}× as blocks"
        return f"Fusion({type(self.model).__name__}, {recipe.method}, {size}, {large})"

    def summary(self) -> Summary:
        """Channels fused, isolated, combined and deleted per space, parameters, and convergence."""
        plan = self.plan
        spaces = tuple(
            SpaceSummary(
                space.name,
                space.kind,
                space.width,
                (reduction := plan[space.name]).width,
                reduction.fused,
                reduction.isolated,
                reduction.combined,
                reduction.deleted,
                reduction.cost,
            )
            for space in self.blueprint
        )
        return Summary(
            self.recipe,
            spaces,
            self.count,
            plan.sweeps,
            plan.converged,
            plan.cost,
            self.unseen,
            str(Averaged.of(self.sources[-1], self.blueprint)) if len(self.sources) > 1 else "",
            self.shortfall,
            self.changes,
            shorten(self.unrepaired),
            shorten(self.unrefitted),
            shorten([name for name, _ in self.sources[-1].named_parameters() if name not in self.blueprint.used]),
            self.latency,
            self.operations,
            not_interpolated(self.plan, self.blueprint) if isinstance(self.recipe.pruning, Interpolate) else (),
            "; ".join(filter(None, [shorten(self.rotated), self.rotations.alone if self.rotations else ""])),
            shorten(self.unrotated),
            self.rounding,
            ", ".join(f"{method} {distance:.2g}" for method, distance in self.compared.items()),
            self.blueprint.checked if self.blueprint.checked == WITHOUT_NUMBERS else "",
        )


def not_interpolated(plan: Plan, blueprint: Blueprint) -> tuple[str, ...]:
    """Where interpolation had to do something else, in words."""
    interpolated = {s.name for s in blueprint if any(p.interpolation is not None for p in plan[s.name].pairs)}
    bundles = {blueprint[name].bundle for name in interpolated}
    clustered, nearest = [], []
    for space in blueprint:
        reduction = plan[space.name]
        if space.name in interpolated:
            reading = {b.parameter for b in space.bindings if b.role == "reads"}
            nearest += sorted(reading - reduction.dense_readers) if reduction.dense_readers else []
        elif space.kind == "elastic" and reduction.combined and (space.bundle is None or space.bundle not in bundles):
            clustered.append(space.name)
    notes = []
    if clustered:
        notes.append(f"clustered, since not all that reads them can combine their channels: {shorten(clustered)}")
    if nearest:
        notes.append(f"read the nearest channels that are kept, since no activations were seen: {shorten(nearest)}")
    return tuple(notes)
