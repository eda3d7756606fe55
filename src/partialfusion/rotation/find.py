"""Which spaces of a network may be rotated: found by rotating them at random."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..blueprint import Blueprint, NormLayer, Space
from ..core.inputs import Inputs, run
from ..core.modules import named_tensors
from ..core.probes import probes
from ..surgery.verify import close, disturbed, precise
from ..surgery.views import place_views
from .rotary import Pairing, counts_heads, opened_in, pairings
from .streams import Stream
from .turn import Rotations, head_channels, turn


@dataclass(frozen=True, eq=False)
class Rotatable:
    """The spaces that may be rotated.

    Attributes:
        directions: spaces of which any orthonormal directions may serve as channels.
        heads: bundle → those of its spaces whose channels may be rotated within every head.
        rotary: those of them with rotary positions → the pairs of channels that may be rotated; their channels in the
            blueprint are whole heads.
        streams: those of the first that are read through norms.
        left: streams and spaces of heads that may not be rotated.
    """

    directions: tuple[str, ...] = ()
    heads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rotary: Mapping[str, Pairing] = field(default_factory=dict)
    streams: Mapping[str, Stream] = field(default_factory=dict)
    left: tuple[str, ...] = ()

    @property
    def spaces(self) -> list[str]:
        return [*self.directions, *(s for spaces in self.heads.values() for s in spaces)]

    def opened(self, blueprint: Blueprint) -> Blueprint:
        """The blueprint in which all that may be rotated is there channel by channel."""
        return opened_in(blueprint, {space: pairing.size for space, pairing in self.rotary.items()})

    def folded(self, model: nn.Module, blueprint: Blueprint, *, uncentred: bool = True) -> nn.Module:
        """A copy of a model that computes the same, ready to be rotated.

        Args:
            model: the model.
            blueprint: its blueprint.
            uncentred: norms no longer subtract the mean, which is zero; only then any rotation will do, otherwise those
                that keep it zero.
        """
        twin = copy.deepcopy(model)
        for stream in self.streams.values():
            stream.fold(twin, blueprint)
        layers = self.layers(blueprint) if uncentred else {}
        width = {n.path: blueprint.normed[n.path] for name in self.streams for n in blueprint[name].norms}
        one = {path: (torch.full((1, width[path]), 1 / width[path]), torch.ones(1, width[path])) for path in layers}
        return place_views(twin, layers, one)

    def layers(self, blueprint: Blueprint) -> dict[str, NormLayer]:
        """Path → norm that need not subtract the mean, for those that do."""
        paths = [n.path for name, s in self.streams.items() if s.centred for n in blueprint[name].norms]
        return {path: replace(blueprint.norm_layers[path], centred=False) for path in paths}

    def turned(
        self, folded: Sequence[nn.Module], blueprints: Sequence[Blueprint], rotations: Rotations
    ) -> tuple[Blueprint, ...]:
        """Rotate folded models, in place; their blueprints.

        Args:
            folded: what `folded` gave for the models, uncentred where the rotations are.
            blueprints: those of the models.
            rotations: how to rotate them.
        """
        for model, blueprint, turns in zip(folded, blueprints, rotations.turns, strict=True):
            turn(model, blueprint, turns)
        layers = self.layers(blueprints[-1]) if rotations.uncentred else {}
        return tuple(replace(b, norm_layers={**b.norm_layers, **layers}) for b in blueprints)


def rotatable(models: Sequence[nn.Module], blueprints: Sequence[Blueprint], inputs: Inputs, seed: int = 0) -> Rotatable:
    """The spaces whose rotation leaves the outputs of models as they are, on the example inputs and on noise.

    Tried on a copy of the last one with disturbed weights: branches that begin at zero would hide errors.

    Args:
        models: models of one architecture; they stay as they are.
        blueprints: one per model, with the same spaces.
        inputs: example inputs.
        seed: random seed of the rotations.
    """
    model, blueprint = models[-1], blueprints[-1]
    free = [s for s in blueprint if s.kind != "rigid" and s.width > max(1, s.heads) and _even(s)]
    original, wide = precise(disturbed(model, blueprint.constants, seed), inputs, torch.float64)
    references = [(wide, run(original, wide)), *probes(original, wide, seed)]
    generator = torch.Generator().manual_seed(seed)

    def same(twin: nn.Module) -> bool:
        return all(close(run(twin, x), expected) for x, expected in references)

    streams: dict[str, Stream] = {}
    for space in (s for s in free if s.norms):
        stream = Stream.of(original, blueprint, space, wide)
        if stream is not None and all(stream.divisible(m, b) for m, b in zip(models, blueprints, strict=True)):
            alone = Rotatable(streams={space.name: stream})
            streams |= alone.streams if same(alone.folded(original, blueprint)) else {}
    tried = [s for s in free if s.name in streams or (not s.norms and all(b.role != "scales" for b in s.bindings))]
    subject = Rotatable(streams=streams).folded(original, blueprint)
    tensors = named_tensors(subject)

    def holds(space: Space, rotation: Tensor) -> bool:
        before = {b.parameter: tensors[b.parameter].clone() for b in space.bindings}
        turn(subject, blueprint, {space.name: rotation})
        held = same(subject)
        with torch.no_grad():
            for name, value in before.items():
                tensors[name].copy_(value)
        return held

    good = [s for s in tried if holds(s, _random(s, generator))]
    rotary: dict[str, Pairing] = {}
    known: dict[tuple[int, ...], list[Pairing]] = {}  # heads of one make are turned in the same way
    for space in (s for s in blueprint if s.kind != "rigid" and counts_heads(s)):
        make = _places(space)
        if any(_places(b[space.name]) != make for b in blueprints):
            continue
        found = (p for p in known.get(make, pairings(space)) if holds(space, p.random(space.width, generator)))
        known[make] = [pairing] if (pairing := next(found, None)) else []
        rotary |= {space.name: pairing} if pairing else {}
    good += [blueprint[name] for name in rotary]
    heads: dict[str, list[str]] = {}
    for space in good:
        if space.bundle is not None:
            heads.setdefault(space.bundle, []).append(space.name)
    directions = tuple(s.name for s in good if s.bundle is None)
    return Rotatable(
        directions,
        {bundle: tuple(spaces) for bundle, spaces in heads.items()},
        rotary,
        {name: stream for name, stream in streams.items() if name in directions},
        tuple(s.name for s in blueprint if s.kind != "rigid" and _is_candidate(s) and s not in good),
    )


def _is_candidate(space: Space) -> bool:
    """Whether one would expect that a space may be rotated: a stream, or what layers compute for heads."""
    return bool(space.norms) or (space.bundle is not None and any(b.dim is not None for b in space.bindings))


def _places(space: Space) -> tuple[int, ...]:
    """How many places on every axis a channel has."""
    return tuple(b.index.shape[1] for b in space.bindings)


def _even(space: Space) -> bool:
    """Whether all heads have the same number of channels."""
    return len({len(channels) for channels in head_channels(space)}) <= 1


def _random(space: Space, generator: torch.Generator) -> Tensor:
    """A random rotation: (width × width), or (heads × channels × channels) where there are heads."""
    shape = (space.width,) * 2 if space.blocks is None else (space.heads, *(space.width // space.heads,) * 2)
    return torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))[0]
