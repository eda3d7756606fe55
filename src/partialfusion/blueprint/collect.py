"""From labels to channel spaces."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from .labels import FIXED, Labels
from .spaces import AxisBinding, Blueprint, Kind, Norm, Role, Space
from .tracer import AxisLabels, Tracer


@dataclass
class Unit:
    """A channel: its places on every axis that carries it, and the marks on it."""

    places: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    marks: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    bundle: int | None = None
    block: int = 0
    history: int = 0


def collect(tracer: Tracer) -> Blueprint:
    """Channels with the same bindings and the same marks form a space."""
    bound = [b for group in tracer.bound.values() for b in group] + _direct_axes(tracer)
    _mark_conflicts(tracer, bound)
    units = _units(tracer, bound)
    groups: dict[tuple[object, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        places = tuple((b, len(p)) for b, p in unit.places.items())
        signature = places, tuple(sorted(unit.marks.items())), unit.bundle, unit.history
        groups[signature].append(unit)
    spaces = [_space(tracer, bound, members) for members in groups.values()]
    shapes = {name: tuple(t.shape) for name, t in tracer.program.tensors.items()}
    norms = tuple(dict.fromkeys(_merge_norms(tracer.norms)))
    return Blueprint(
        _named(spaces),
        norms,
        shapes,
        dict(tracer.unknown),
        tracer.program.used,
        tuple(sorted(tracer.nonlinear_after)),
    )


def _direct_axes(tracer: Tracer) -> list[AxisLabels]:
    """Parameters that were labelled element by element: the axes along which their labels run."""
    found = []
    for name, labels in tracer.direct.items():
        if any(parameter == name for parameter, _ in tracer.bound):
            tracer.rigid(labels, f"{name} is used in two ways")
            for (parameter, _), group in tracer.bound.items():
                if parameter == name:
                    tracer.rigid(group[0].labels, f"{name} is used in two ways")
            continue
        roots = tracer.labels.find(labels)
        for axis in reversed(range(roots.dim())):
            rows = roots.movedim(axis, -1).reshape(-1, roots.shape[axis])
            if bool((rows == rows[0]).all()):
                found.append(AxisLabels(name, axis, "writes", rows[0], None))
                break
        else:
            tracer.rigid(roots, f"{name} carries channels along several axes")
    return found


def _mark_conflicts(tracer: Tracer, bound: list[AxisLabels]) -> None:
    """A parameter takes its models' shares once, so it can follow the write kernel of one space only."""
    roles: dict[tuple[str, int], set[Role]] = defaultdict(set)
    writing: dict[str, list[AxisLabels]] = defaultdict(list)
    for b in bound:
        roles[b.parameter, b.axis].add(b.role)
        if b.role != "reads":
            writing[b.parameter].append(b)
    for b in bound:
        both = roles[b.parameter, b.axis] >= {"reads", "writes"}
        if both or (b.role != "reads" and len({w.axis for w in writing[b.parameter]}) > 1):
            tracer.permutable(b.labels, f"{b.parameter} is tied")


def _units(tracer: Tracer, bound: list[AxisLabels]) -> list[Unit]:
    """The channels, in the order in which the network first computes them."""
    units: dict[int, Unit] = defaultdict(Unit)
    unit_of = tracer.labels.units()
    for number, b in enumerate(bound):
        for position, root in enumerate(unit_of[b.labels].tolist()):
            if root > FIXED:
                units[root].places[number].append(position)
    history = tracer.labels.histories(unit_of).tolist()
    for root, unit in units.items():
        unit.history = history[root]
    _put_into_blocks(tracer, units, unit_of)
    for number, (labels, counts, mark) in enumerate(tracer.labels.marks):
        event = number if mark.kind == "permutable" else -1 - number
        for root, count in zip(unit_of[labels].tolist(), counts.tolist(), strict=True):
            if root in units:
                units[root].marks[event] += count
    return [units[root] for root in sorted(units)]


def _put_into_blocks(tracer: Tracer, units: dict[int, Unit], unit_of: Tensor) -> None:
    """Assign every unit its block, and find which blocks may be exchanged: those that one operation found."""
    labels = tracer.labels
    parent = labels.parents()
    alike = Labels()
    alike.root = torch.arange(len(labels.root))
    for rows, parents in labels.nests:
        heads = labels.find(parents)
        alike.unite(heads, heads[:1].expand_as(heads))
        if len(heads.unique()) < len(rows):
            tracer.rigid(rows, "lies in blocks that overlap")
    for child in torch.nonzero(parent).flatten().tolist():
        block = int(parent[child])
        for root in (int(unit_of[child]), int(unit_of[block])):
            if root in units:
                units[root].bundle, units[root].block = int(alike.root[block]), block


def _space(tracer: Tracer, bound: list[AxisLabels], members: list[Unit]) -> Space:
    first = next(iter(members[0].places))
    members = sorted(members, key=lambda u: u.places[first])
    bindings = []
    for number in members[0].places:
        b = bound[number]
        index = np.array([u.places[number] for u in members], np.int64)
        bindings.append(AxisBinding(b.parameter, b.axis, b.role, index, b.dim))
    kinds: dict[str, list[str]] = defaultdict(list)
    for event in members[0].marks:
        mark = tracer.labels.marks[event if event >= 0 else -1 - event][2]
        kinds[mark.kind].append(mark.reason)
    kind: Kind = "rigid" if kinds["rigid"] else "permutable" if kinds["permutable"] else "elastic"
    reasons = tuple(dict.fromkeys(kinds["rigid"] or kinds["permutable"]))
    if members[0].bundle is None:
        return Space("", len(members), kind, reasons, tuple(bindings))
    if kind == "elastic":
        kind, reasons = "permutable", ("goes with the heads of attention",)
    blocks = np.unique([u.block for u in members], return_inverse=True)[1]
    sizes = np.bincount(blocks)
    if sizes.min() != sizes.max():
        kind, reasons = "rigid", ("lies in blocks of different sizes",)
    return Space("", len(members), kind, reasons, tuple(bindings), blocks, str(members[0].bundle))


def _named(spaces: list[Space]) -> tuple[Space, ...]:
    """Name every space after the first weight that writes it."""
    taken: dict[str, int] = defaultdict(int)
    named = []
    for s in spaces:
        base = (s.names("writes") or s.names("scales") or s.names("reads"))[0]
        taken[base] += 1
        name = base if taken[base] == 1 else f"{base}#{taken[base]}"
        named.append(replace(s, name=name))
    first: dict[str, str] = {}
    for s in named:
        if s.bundle is not None:
            first.setdefault(s.bundle, s.name)
    return tuple(s if s.bundle is None else replace(s, bundle=first[s.bundle]) for s in named)


def _merge_norms(norms: list[Norm]) -> list[Norm]:
    """One entry for a normalisation that is used in several places."""
    sources: dict[tuple[str, str], set[str]] = defaultdict(set)
    for n in norms:
        sources[n.mean, n.var].update(n.sources)
    return [Norm(mean, var, tuple(sorted(s))) for (mean, var), s in sources.items()]
