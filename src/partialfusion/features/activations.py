"""Activations as features: channels are similar when they respond to the data in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import AxisBinding, Blueprint
from ..core.arrays import Floats, Ints
from ..core.inputs import Inputs
from ..core.literals import Site
from ..core.modules import at_rest
from ..core.observer import LayerCall, Observer
from ..errors import DataError
from .moments import Moments

# A place where the channels of a space are seen: the space, the weight at work, its role, the number of its use, and
# the first slot of it that is seen there.
Place = tuple[str, str, str, int, int]
RECTIFIERS = ("relu", "relu_")


@dataclass(frozen=True)
class Tap:
    """Where to look for the channels of a space.

    Attributes:
        space: name of the space.
        weight: the weight at work there, or the path of a norm across channels.
        role: "writes" to see what the weight computes, "reads" to see what it reads, "normed" for what a norm reads.
        dim: channel dimension of that activation, counted from the end.
        index: (units × slots) positions of the units along it.
        axis: the axis of the weight that has these channels, where other uses of the weight have them in another role:
            an embedding that is also the last layer, a weight that maps back what it computes. None where none has.
    """

    space: str
    weight: str
    role: str
    dim: int
    index: Ints
    axis: int | None = None


def taps_of(blueprint: Blueprint, spaces: Sequence[str], site: Site) -> list[Tap]:
    """Where to look for the spaces: at the wanted site, or at the other one where a space has none.

    "auto" looks before the activation function, but after it for spaces with a batch norm, where what is computed has
    no scale before it is normalised, and in networks with ReLU, whose negative side nothing reads. A stream is also
    seen where norms run across it: there it is whole, while each weight writes only a part. Where it begins, it is only
    the embedding: that is left out where there is more to see.
    """
    statistics = {norm.var for norm in blueprint.norms}
    rectified = any(operation.short in RECTIFIERS for operation in blueprint.operations)
    found = []
    for name in spaces:
        bindings, norms = blueprint[name].bindings, blueprint[name].norms
        scaled_later = any(b.parameter in statistics for b in bindings)
        after = site == "post" or (site == "auto" and (scaled_later or (rectified and not norms)))
        for role in ("reads", "writes") if after else ("writes", "reads"):
            seen = [b for b in bindings if b.role == role and b.dim is not None]
            if len(norms) > 1 and role == "writes":
                seen = seen[1:] or seen
            if seen:
                found += [_tap(name, b, bindings) for b in seen]
                break
        for norm in norms[1:] or norms:
            found.append(Tap(name, norm.path, "normed", blueprint.norm_layers[norm.path].dim, norm.index))
    return found


def _tap(space: str, binding: AxisBinding, bindings: Sequence[AxisBinding]) -> Tap:
    assert binding.dim is not None
    place = binding.parameter, binding.axis
    tied = {"reads", "writes"} <= {b.role for b in bindings if (b.parameter, b.axis) == place}
    axis = binding.axis if tied else None
    return Tap(space, binding.parameter, binding.role, binding.dim, binding.index, axis)


class _Recorder(Observer):
    """Keeps the activations at the taps of one model, a batch at a time."""

    def __init__(self, model: nn.Module, taps: Iterable[Tap]) -> None:
        self.taps: dict[tuple[str, str], list[Tap]] = {}
        for tap in taps:
            known = self.taps.setdefault((tap.weight, tap.role), [])
            if all(tap.space != other.space for other in known):
                known.append(tap)
        modules = dict(model.named_modules())
        self.normed = {path: modules[path] for path, role in self.taps if role == "normed"}
        super().__init__(model)

    def start(self) -> None:
        super().start()
        self.found: dict[Place, Tensor] = {}
        self.norm_calls: Counter[str] = Counter()

    def run(self, batch: Inputs, number: int) -> Any:
        hooks = [m.register_forward_pre_hook(self._before_norm(path)) for path, m in self.normed.items()]
        try:
            return super().run(batch, number)
        finally:
            for hook in hooks:
                hook.remove()

    def _before_norm(self, path: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            for tap in self.taps[path, "normed"]:
                place = tap.space, path, "normed", self.norm_calls[path], 0
                self.found[place] = _channels(args[0], tap.dim, tap.index)
            self.norm_calls[path] += 1

        return before

    def before(self, call: LayerCall) -> None:
        self._keep(call, "reads", call.x)

    def after(self, call: LayerCall, result: Tensor) -> None:
        self._keep(call, "writes", result)

    def _keep(self, call: LayerCall, role: str, activation: Tensor) -> None:
        for tap in self.taps.get((call.name, role), ()):
            if tap.axis is not None and (tap.axis == self.read_axis(call)) != (role == "reads"):
                continue
            index, first = tap.index, 0
            if call.rows is not None and role == "writes":
                index, first = _within(index, call.rows)
            if index.size:
                self.found[tap.space, tap.weight, role, call.use, first] = _channels(activation, tap.dim, index)


def _within(index: Ints, rows: tuple[int, int]) -> tuple[Ints, int]:
    """The slots of an index that sit in a slice of the weight, counted from its start, and the first of them."""
    slots = np.flatnonzero(((index >= rows[0]) & (index < rows[1])).all(0))
    return index[:, slots] - rows[0], int(slots[0]) if len(slots) else 0


def _channels(activation: Tensor, dim: int, index: Ints) -> Tensor:
    """(units × slots × samples) in single precision, a copy: the model may write into its activations later."""
    moved = activation.detach().movedim(dim, 0)
    if index.shape == (len(moved), 1) and bool((index[:, 0] == np.arange(len(moved))).all()):
        taken = torch.empty(moved.shape, dtype=torch.float32, device=moved.device).copy_(moved)
    else:
        taken = moved.index_select(0, torch.from_numpy(index.reshape(-1)).to(moved.device)).float()
    return taken.reshape(*index.shape, -1)


@dataclass(frozen=True)
class Need:
    """What is wanted of the activations at one site.

    Attributes:
        site: where to look at activations.
        within: covariances within the union of the models are wanted, not only those of each model with the last.
    """

    site: Site
    within: bool = False


@dataclass(frozen=True)
class Activations:
    """Moments of the channels of all models, measured in one pass over the data.

    Attributes:
        moments: place → moments.
        places: site → space → the places where that site sees the space.
    """

    moments: Mapping[Place, Moments]
    places: Mapping[Site, Mapping[str, Sequence[Place]]]

    @classmethod
    def record(
        cls,
        models: Sequence[nn.Module],
        blueprints: Sequence[Blueprint],
        batches: Iterable[Inputs],
        spaces: Sequence[str],
        needs: Collection[Need],
    ) -> Activations:
        """Run every model once over the data.

        Args:
            models: the models.
            blueprints: one per model, with the same spaces.
            batches: inputs; each is run once through every model and forgotten.
            spaces: the spaces to look at.
            needs: what will be asked for.
        """
        within = {need.site: False for need in needs}
        for need in needs:
            within[need.site] |= need.within
        taps = [{site: taps_of(b, spaces, site) for site in within} for b in blueprints]
        recorders = [
            _Recorder(model, (tap for found in per_site.values() for tap in found))
            for model, per_site in zip(models, taps, strict=True)
        ]
        union = {(t.space, t.weight, t.role) for site, wanted in within.items() if wanted for t in taps[-1][site]}
        moments: dict[Place, Moments] = {}
        seen = 0
        with at_rest(*models):
            for batch in batches:
                for recorder in recorders:
                    recorder.run(batch, seen)
                seen += 1
                for place in recorders[-1].found:
                    known = moments.setdefault(place, Moments(within=place[:3] in union))
                    known.add([recorder.found.pop(place) for recorder in recorders[:-1]] + [recorders[-1].found[place]])
        if not seen:
            raise DataError("the data holds no batch: activations need at least one")
        places = {site: _places(moments, taps[-1][site]) for site in within}
        return cls(moments, places)

    def seen(self, site: Site) -> set[str]:
        """The spaces whose activations were seen at a site."""
        return set(self.places[site])

    def costs(self, site: Site, k: int, *, squared: bool = False) -> dict[str, Floats]:
        """Space → (n × m) of one minus the correlation of the channels of model k with those of the last model.

        With `squared`, the mean squared difference instead: the paper's cost. Either is averaged over all places where
        the space is seen.
        """

        def cost(m: Moments) -> Tensor:
            last = m.models - 1
            return m.squared_distance(k, last) if squared else 1 - m.correlation(k, last)

        return {
            space: np.mean([finite(cost(self.moments[p]).cpu().numpy(), space) for p in places], axis=0)
            for space, places in self.places[site].items()
        }

    def union(self, site: Site) -> dict[str, dict[Place, Moments]]:
        """Space → the moments of all models' channels, one for every place where the space is seen."""
        return {space: {p: self.moments[p] for p in places} for space, places in self.places[site].items()}


def _places(moments: Iterable[Place], taps: Sequence[Tap]) -> dict[str, list[Place]]:
    wanted = {(t.space, t.weight, t.role) for t in taps}
    found: dict[str, list[Place]] = {}
    for place in moments:
        if place[:3] in wanted:
            found.setdefault(place[0], []).append(place)
    return found


def finite(values: Floats, space: str) -> Floats:
    if not np.isfinite(values).all():
        raise DataError(f"the activations of {space} on this data are not finite: check the data for NaN")
    return values
