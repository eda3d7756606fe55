"""Methods of generalised pruning: each chooses which channels of a space are isolated, deleted or combined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np

from ..core.arrays import Floats, Ints
from ..core.literals import Importance, Site, Solver
from ..errors import OptionError
from ..features import UnionSpace
from ..kernels import Choice
from ..solvers import Clustering, cluster, coupling, lloyd, stochastic_ward, ward, zip_pairs
from ..solvers.interpolation import RIDGE

SOLVERS: tuple[str, ...] = get_args(Solver)
RESTARTS = {"stochastic-ward": 1000, "lloyd": 10}
IMPORTANCE: tuple[str, ...] = get_args(Importance)


@dataclass(frozen=True)
class Preference:
    """The features that suit a method when there is data, and where to look at activations.

    Attributes:
        features: what to compare channels by.
        site: where to look at activations.
        only: no other features and site make sense.
    """

    features: Literal["weights", "activations", "both"] = "both"
    site: Site = "auto"
    only: bool = False


@dataclass
class Search:
    """What a search may use, and whether the user has interrupted it.

    Attributes:
        seed: random seed.
        on_progress: called with what is done and what there is to do.
        stopped: set when a search was interrupted; later ones then stop at a quick solution.
    """

    seed: int = 0
    on_progress: Callable[[int, int], None] | None = None
    stopped: bool = False


class PruningMethod(Protocol):
    """Anything that can choose; users may pass their own."""

    @property
    def name(self) -> str: ...

    @property
    def needs_data(self) -> bool:
        """Whether activations are needed whatever the features."""
        ...

    @property
    def prefers(self) -> Preference:
        """What to compare channels by, unless the user says."""
        ...

    def choose(self, space: UnionSpace, k: int, search: Search) -> Choice:
        """Reduce a space to k channels, 1 ≤ k < its width."""
        ...


@dataclass(frozen=True)
class Cluster:
    """Channels with similar features become one, at their centre.

    Attributes:
        solver: "exchange" (Ward refined by exchanges), "ward" (greedy), "stochastic-ward" (the paper's: the best of
            many randomised runs) or "lloyd" (k-means).
        effort: how long "exchange" searches.
        restarts: how often the last two start anew; default 1000 and 10.
        workers: threads of the search; all cores unless given.
    """

    solver: Solver = "exchange"
    effort: float = 1.0
    restarts: int | None = None
    workers: int | None = None

    name = "cluster"
    needs_data = False
    prefers: ClassVar[Preference] = Preference()

    def __post_init__(self) -> None:
        _known("solver", self.solver, SOLVERS)
        if not self.effort >= 0:
            raise OptionError(f"effort={self.effort} must be a number that is not negative")
        if self.restarts is not None and self.solver not in RESTARTS:
            raise OptionError(f"restarts are for stochastic-ward and lloyd, not for solver={self.solver!r}")
        if self.restarts is not None and self.restarts < 1:
            raise OptionError(f"restarts={self.restarts} must be at least 1")

    def choose(self, space: UnionSpace, k: int, search: Search) -> Choice:
        found = self._solve(space.squared, k, space.masses, search)
        search.stopped |= not found.complete
        return Choice.of_labels(found.labels, space.masses, found.inertia, complete=found.complete)

    def _solve(self, squared: Floats, k: int, masses: Floats, search: Search) -> Clustering:
        if self.solver == "ward" or search.stopped:
            return ward(squared, k, masses)
        options: dict[str, Any] = {"seed": search.seed, "workers": self.workers, "on_progress": search.on_progress}
        if self.solver == "exchange":
            return cluster(squared, k, masses, effort=self.effort, **options)
        solve = lloyd if self.solver == "lloyd" else stochastic_ward
        return solve(squared, k, masses, restarts=self.restarts or RESTARTS[self.solver], **options)


@dataclass(frozen=True)
class Interpolate:
    """Some channels are kept as they are, all others are read as linear combinations of them.

    Attributes:
        ridge: the strength with which these are held to the one kept channel that is most alike.
        swaps: improve the greedy selection by exchanging single channels.
    """

    ridge: float = RIDGE
    swaps: bool = True

    name = "interpolate"
    needs_data = False
    prefers: ClassVar[Preference] = Preference("activations", "post", only=True)

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise OptionError(f"ridge={self.ridge} must be a number above 0")

    def choose(self, space: UnionSpace, k: int, search: Search) -> Choice:
        """Where something reads a space that cannot combine its channels, such as a tied weight, it is clustered."""
        found = space.selected(k, swaps=self.swaps)
        if found is None:
            return Cluster().choose(space, k, search)
        return Choice.of_kept(np.sort(found.kept), found.residual, ridge=self.ridge)


@dataclass(frozen=True)
class Zip:
    """The most correlated channels become pairs, the rest stays isolated (ZipIt).

    Attributes:
        across: only pair channels of different models, as far as there are any.
    """

    across: bool = False

    name = "zip"
    needs_data = False
    prefers: ClassVar[Preference] = Preference("activations", "post")

    def choose(self, space: UnionSpace, k: int, search: Search) -> Choice:
        found = zip_pairs(space.covariance, k, space.masses, groups=space.model, across=self.across)
        return Choice.of_labels(found.labels, space.masses, found.inertia)


@dataclass(frozen=True)
class Magnitude:
    """The most important channels are kept.

    Attributes:
        by: importance of a channel: the norm of its "incoming" or its "outgoing" weights, or the standard deviation
            of its "activation".
        transport: merge all channels into the kept ones by optimal transport, instead of deleting the others.
    """

    by: Importance = "incoming"
    transport: bool = False

    prefers: ClassVar[Preference] = Preference("activations")

    def __post_init__(self) -> None:
        _known("by", self.by, IMPORTANCE)

    @property
    def name(self) -> str:
        return "magnitude+ot" if self.transport else "magnitude"

    @property
    def needs_data(self) -> bool:
        return self.by == "activation"

    def choose(self, space: UnionSpace, k: int, search: Search) -> Choice:
        importance = space.importance(self.by)
        kept = np.sort(np.argsort(-importance, kind="stable")[:k])
        lost = float(importance.sum() - importance[kept].sum())
        return _transported(space, kept) if self.transport else Choice.of_kept(kept, lost)


def _transported(space: UnionSpace, kept: Ints) -> Choice:
    """All channels onto the kept ones, which hold mass in proportion to their own.

    Channels of a model with share zero carry no mass: kept ones stay what they are, others go to the nearest.
    """
    cost = space.squared[:, kept]
    heavy, taking = np.flatnonzero(space.masses > 0), np.flatnonzero(space.masses[kept] > 0)
    target, source, mass = [], [], []
    total = 0.0
    if len(taking):
        a, b = space.masses[heavy], space.masses[kept[taking]]
        block = cost[np.ix_(heavy, taking)]
        plan = coupling(block, a, b * (a.sum() / b.sum()))
        total = float((plan * block).sum())
        chosen = Choice.of_coupling(plan)
        target, source, mass = [taking[chosen.target]], [heavy[chosen.source]], [chosen.mass]
    light = np.flatnonzero(space.masses <= 0)
    target.append(cost[light].argmin(1))
    source.append(light)
    mass.append(np.zeros(len(light)))
    own = np.searchsorted(kept, light)
    is_kept = np.isin(light, kept)
    target[-1][is_kept] = own[is_kept]
    return Choice(np.concatenate(target), np.concatenate(source), np.concatenate(mass), len(kept), total)


def _known(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{option}={value!r} is not known: choose one of {', '.join(known)}")
