"""The models of one fusion: their blueprints, and what is measured of them, once for everybody who asks."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch import Tensor, nn

from ..blueprint import Blueprint
from ..core.arrays import Floats
from ..core.batches import Batches
from ..core.cluster import Tasks, Threads
from ..core.inputs import Inputs, run
from ..core.literals import Mix, RoundTo
from ..core.modules import first_line, named_tensors
from ..core.noise import noise
from ..core.probes import probes
from ..errors import DataError, MismatchError, OptionError
from ..features import Activations, Need, TracedModel
from ..surgery.verify import close
from .conform import conformed
from .rounding import Grid, grids

log = logging.getLogger(__name__)

NOISE_ROWS = 16  # of a batch of noise
NOISE_RUNS = 64  # batches of it, at most
NOISE_SAMPLES = 20  # samples and positions for each channel, where the limit allows


class Sources:
    """The models, and what is known of them.

    Activations are recorded when they are first asked for, in one pass that serves all needs announced until then.

    Args:
        models: one or more models; the result has the class of the last one.
        blueprint: the blueprint of the last model.
        inputs: example inputs, to trace models of other widths.
        batches: unlabelled data.
        needs: what will be asked of the activations.
        alphas: isolated fractions that models will be aligned at; sizes that are announced are solved together.

    Attributes:
        tasks: where spaces that do not depend on each other are matched.
    """

    tasks: Tasks = Threads()

    def __init__(
        self,
        models: Sequence[nn.Module],
        blueprint: Blueprint,
        inputs: Inputs,
        batches: Batches | None,
        needs: Iterable[Need] = (),
        alphas: Iterable[float] = (),
    ) -> None:
        self.models = tuple(models)
        self.blueprints = tuple(conformed(models, blueprint, inputs))
        self.inputs, self.batches = inputs, batches
        self.needs = set(needs)
        self.alphas = sorted(set(alphas))
        self.paired: Mapping[str, Sequence[Floats]] = {}
        self._activations: Activations | None = None
        self._recorded: frozenset[Need] = frozenset()
        self._grids: dict[RoundTo, dict[str, Grid]] = {}

    def turned(
        self,
        models: Sequence[nn.Module],
        blueprints: Sequence[Blueprint] | None = None,
        paired: Mapping[str, Sequence[Floats]] | None = None,
    ) -> Sources:
        """The same sources with models that compute what these do and have other channels.

        Args:
            models: these models.
            blueprints: theirs, if something else changed.
            paired: space of which the channels of all models correspond in their order → for each model but the last
                (n × m), what fusing them costs.
        """
        other = copy.copy(self)
        for known in ("traced", "_references"):
            other.__dict__.pop(known, None)
        other.models = tuple(models)
        other.blueprints = self.blueprints if blueprints is None else tuple(blueprints)
        other.paired = paired or {}
        other._activations, other._grids = None, {}
        return other

    @property
    def blueprint(self) -> Blueprint:
        """The blueprint of the last model."""
        return self.blueprints[-1]

    @cached_property
    def traced(self) -> tuple[TracedModel, ...]:
        """The models with their parameters; blueprints that are demoted later bind the same axes."""
        return tuple(TracedModel.of(m, b) for m, b in zip(self.models, self.blueprints, strict=True))

    def names(self, *kinds: str) -> list[str]:
        """The spaces of some kinds, in the order of computation."""
        return [s.name for s in self.blueprint if s.kind in kinds]

    @cached_property
    def widths(self) -> dict[str, list[int]]:
        """Space → its channels in each model."""
        return {s.name: [b[s.name].width for b in self.blueprints] for s in self.blueprint}

    def demote(self, blueprint: Blueprint) -> None:
        """Take the kinds of the spaces from a blueprint of the last model in which some were demoted."""
        kinds = {s.name: (s.kind, s.reasons) for s in blueprint}
        self.blueprints = tuple(
            replace(b, spaces=tuple(replace(s, kind=kinds[s.name][0], reasons=kinds[s.name][1]) for s in b))
            for b in self.blueprints
        )

    @property
    def device(self) -> str:
        """The kind of device whose kernels will compute the result."""
        return next(self.models[-1].parameters()).device.type

    def grids(self, round_to: RoundTo) -> dict[str, Grid]:
        """Space → the sizes that it may have."""
        if round_to not in self._grids:
            fuses = len(self.models) > 1
            self._grids[round_to] = grids(round_to, self.blueprint, self.widths, self.device, fuses=fuses)
        return self._grids[round_to]

    def activations(self, need: Need) -> Activations:
        """What was measured on the data; recorded now where that was not done yet."""
        covered = not self._recorded.isdisjoint({need, Need(need.site, within=True)})
        if self._activations is None or not covered:
            self.needs.add(need)
            self.require_numbers()
            spaces = self.names("elastic", "permutable")
            batches = self.batches if self.batches is not None else ()
            self._activations = Activations.record(self.models, self.blueprints, batches, spaces, self.needs)
            self._recorded = frozenset(self.needs)
        return self._activations

    def agree_with(self, result: nn.Module, mix: Mix) -> bool:
        """Whether a result computes what every model with a share in it does, on the example inputs and on noise: it is
        a model fused with its twin, and the statistics of its norms are right as they are."""
        if not self.blueprint.norms or any(t.is_meta for t in named_tensors(result).values()):
            return False
        for x, outputs in self._references.items():
            found = run(result, x)
            if any(share and not close(found, expected) for share, expected in zip(mix, outputs, strict=True)):
                return False
        return bool(self._references)

    @cached_property
    def _references(self) -> dict[Inputs, list[list[Tensor]]]:
        """The example inputs and others at random, or the first batch of the data → what every model returns."""
        shown = [x for x, _ in probes(self.models[-1], self.inputs, seed=0)]
        if not shown and self.batches is not None:
            shown = [self.inputs.signature.inputs(batch) for batch in itertools.islice(self.batches, 1)]
        return {x: [run(m, x) for m in self.models] for x in (self.inputs, *shown)}

    def noise(self, need: Need, seed: int, *, spaces: Sequence[str] | None = None, little: bool = False) -> Activations:
        """What is measured on noise in the place of data, in some spaces or all elastic ones: as much of it as the
        widest of them need, up to a limit; or just as little as tells channels apart."""
        self.require_numbers()
        seen = self.names("elastic") if spaces is None else spaces

        def record(runs: int, rows: int | None) -> Activations:
            batches = noise(self.inputs, runs, seed, rows=rows)
            return Activations.record(self.models, self.blueprints, batches, seen, {need})

        rows: int | None = NOISE_ROWS
        try:
            first = record(1, rows)
        except DataError:  # a model that takes batches of one size only
            rows = None
            first = record(1, rows)
        if little:
            return first
        runs = max((m.wanted(NOISE_SAMPLES) for m in first.moments.values()), default=1)
        return first if runs <= 1 else record(min(runs, NOISE_RUNS), rows)

    def background(self, need: Need, seed: int, spaces: Sequence[str] | None = None) -> Activations | None:
        """What is measured on noise beside the data; None, with a warning, where the models do not run on it."""
        try:
            return self.noise(need, seed, spaces=spaces)
        except Exception as error:  # whatever the code of a model raises for inputs that it does not expect
            log.warning(
                "the models do not run on noise (%s): the data alone tells channels apart that it hardly shows",
                first_line(error),
            )
            return None

    @property
    def recorded(self) -> bool:
        """Whether activations were asked for, and so recorded."""
        return self._activations is not None

    def require_numbers(self) -> None:
        """Comparing channels needs numbers."""
        if any(t.is_meta for source in self.traced for t in source.tensors.values()):
            raise OptionError("the models have no numbers (meta device): only alpha=1 and method='average' need none")

    def require_equal_widths(self, method: str) -> None:
        """Some methods match channels one to one."""
        last = self.traced[-1].tensors
        for k, source in enumerate(self.traced[:-1]):
            for name, tensor in source.tensors.items():
                if tensor.shape != last[name].shape:
                    raise MismatchError(
                        f"{name} has shape {tuple(tensor.shape)} in models[{k}] and {tuple(last[name].shape)} in the "
                        f"last model: method={method!r} needs equal widths; use method='ot' or 'partial-ot'"
                    )
