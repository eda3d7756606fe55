"""From labels to channel spaces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from .compare import operations
from .labels import FIXED, Labels
from .spaces import AxisBinding, Blueprint, Kind, Norm, NormBinding, Role, Space
from .ties import tied_to_norms
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
    scalars = _scalars(tracer)
    bound += [b for b, _ in scalars.values()]
    tied = tied_to_norms(tracer.program, bound)
    shared = _mark_conflicts(tracer, bound, tied)
    normed = [AxisLabels(path, 0, "scales", labels, None) for path, labels in tracer.normed.items()]
    units = _units(tracer, [*bound, *normed])
    groups: dict[tuple[object, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        places = tuple((b, len(p)) for b, p in unit.places.items())
        signature = places, tuple(sorted(unit.marks.items())), unit.bundle, unit.history
        groups[signature].append(unit)
    spaces = [_space(tracer, [*bound, *normed], len(bound), members) for members in groups.values()]
    shapes = {name: tuple(t.shape) for name, t in tracer.program.tensors.items()}
    norms = tuple(dict.fromkeys(_merge_norms(tracer.norms)))
    return Blueprint(
        _with_equal_widths(_with_bundles(_named(spaces)), tracer.equal_widths),
        norms,
        shapes,
        dict(tracer.unknown),
        tracer.program.used,
        tuple(sorted(tracer.nonlinear_after)),
        norm_layers=dict(tracer.program.norms),
        normed={path: len(labels) for path, labels in tracer.normed.items()},
        constants=frozenset(tracer.constants),
        tied=tied,
        shared=shared,
        operations=operations(tracer.program),
        scalars={name: behind for name, (_, behind) in scalars.items()},
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
        met = torch.bincount(tracer.labels.root)[roots] > 1  # a row of a table that nothing looks up meets nothing
        for axis in reversed(range(roots.dim())):
            rows, known = (x.movedim(axis, -1).reshape(-1, roots.shape[axis]) for x in (roots, met))
            channels = torch.where(known.any(0), rows.masked_fill(~known, 0).amax(0), rows[0])
            if bool(((rows == channels) | ~known).all()):
                tracer.labels.unite(rows, channels.expand_as(rows))
                found.append(AxisLabels(name, axis, "writes", tracer.labels.find(channels), None))
                break
        else:
            tracer.rigid(roots, f"{name} carries channels along several axes")
    return found


def _scalars(tracer: Tracer) -> dict[str, tuple[AxisLabels, int]]:
    """Parameters of a single number that can be spread over channels: the channels, and the number of dimensions
    behind these. They must be the same wherever the number is used."""
    found = {}
    for name, uses in tracer.scalars.items():
        labels, dim, _ = uses[0]
        roots = tracer.labels.find(labels)
        alike = all(d == dim and torch.equal(tracer.labels.find(other), roots) for other, d, _ in uses)
        taken = name in tracer.direct or any(parameter == name for parameter, _ in tracer.bound)
        if alike and not taken and bool((roots > FIXED).all()) and len(tracer.program.tensors[name].shape) == 1:
            role: Role = "scales" if any(r == "scales" for _, _, r in uses) else "writes"
            found[name] = AxisLabels(name, 0, role, roots, None), -1 - dim
    return found


def _mark_conflicts(tracer: Tracer, bound: list[AxisLabels], tied: Mapping[str, str]) -> frozenset[str]:
    """A parameter takes its models' shares once, so it can follow the write kernel of one space only; those that would
    have to follow several."""
    found = set()
    roles: dict[tuple[str, int], set[Role]] = defaultdict(set)
    writing: dict[str, list[AxisLabels]] = defaultdict(list)
    for b in bound:
        roles[b.parameter, b.axis].add(b.role)
        if b.role != "reads":
            writing[b.parameter].append(b)
    for b in bound:
        both = roles[b.parameter, b.axis] >= {"reads", "writes"}
        if b.parameter in tied:
            continue
        if both or (b.role != "reads" and len({w.axis for w in writing[b.parameter]}) > 1):
            tracer.permutable(b.labels, f"{b.parameter} is tied")
            found.add(b.parameter)
    return frozenset(found)


def _units(tracer: Tracer, bound: list[AxisLabels]) -> list[Unit]:
    """The channels, in the order in which the network first computes them."""
    units: dict[int, Unit] = defaultdict(Unit)
    tracer.labels.glue_blocks()
    unit_of = tracer.labels.units()
    tensors = tracer.program.tensors
    for number, b in enumerate(bound):
        one = b.parameter in tracer.scalars and tensors[b.parameter].numel() == 1
        for position, root in enumerate(unit_of[b.labels].tolist()):
            if root > FIXED:
                units[root].places[number].append(0 if one else position)
    history = tracer.labels.histories(unit_of).tolist()
    for root, unit in units.items():
        unit.history = history[root]
    _put_into_blocks(tracer, units, unit_of)
    _stiffen_members(tracer)
    for number, (labels, counts, mark) in enumerate(tracer.labels.marks):
        event = number if mark.kind == "permutable" else -1 - number
        for root, count in zip(unit_of[labels].tolist(), counts.tolist(), strict=True):
            if root in units:
                units[root].marks[event] += count
    return [units[root] for root in sorted(units)]


def _stiffen_members(tracer: Tracer) -> None:
    """What cannot be moved as a block cannot be moved channel by channel either: a mean of outputs is an output."""
    labels = tracer.labels
    parent = labels.parents()
    children = torch.nonzero(parent).flatten()
    for found, _, mark in list(labels.marks):
        if mark.kind == "rigid":
            members = children[torch.isin(parent[children], labels.find(found))]
            labels.mark(members, mark)


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
                units[root].bundle, units[root].block = int(alike.root[block]), int(unit_of[block])


def _space(tracer: Tracer, bound: list[AxisLabels], parameters: int, members: list[Unit]) -> Space:
    """A space of units that are alike; of the axes `bound`, the first `parameters` are those of parameters, the others
    those of norms."""
    first = next(iter(members[0].places))
    members = sorted(members, key=lambda u: u.places[first])
    begins = {u.block: k for k, u in reversed(list(enumerate(members)))}
    members = sorted(members, key=lambda u: begins[u.block])  # channels of a block stand side by side
    bindings, norms = [], []
    for number in members[0].places:
        b = bound[number]
        index = np.array([u.places[number] for u in members], np.int64)
        if number < parameters:
            bindings.append(AxisBinding(b.parameter, b.axis, b.role, index, b.dim))
        else:
            norms.append(NormBinding(b.parameter, index))
    kinds: dict[str, list[str]] = defaultdict(list)
    for event in members[0].marks:
        mark = tracer.labels.marks[event if event >= 0 else -1 - event][2]
        kinds[mark.kind].append(mark.reason)
    kind: Kind = "rigid" if kinds["rigid"] else "permutable" if kinds["permutable"] else "elastic"
    reasons = tuple(dict.fromkeys(kinds["rigid"] or kinds["permutable"]))
    space = Space("", len(members), kind, reasons, tuple(bindings), norms=tuple(norms))
    if members[0].bundle is None:
        return space
    blocks = np.unique([begins[u.block] for u in members], return_inverse=True)[1]
    sizes = np.bincount(blocks)
    if sizes.min() != sizes.max():
        kind, reasons = "rigid", ("lies in blocks of different sizes",)
    return replace(
        space, kind=kind, reasons=reasons, blocks=blocks, bundle=str(members[0].bundle), step=int(sizes.min())
    )


def _named(spaces: list[Space]) -> tuple[Space, ...]:
    """Name every space after the first weight that writes it."""
    taken: dict[str, int] = defaultdict(int)
    named = []
    for s in spaces:
        base = (s.names("writes") or s.names("scales") or s.names("reads"))[0]
        taken[base] += 1
        name = base if taken[base] == 1 else f"{base}#{taken[base]}"
        named.append(replace(s, name=name))
    return tuple(named)


def _with_bundles(spaces: tuple[Space, ...]) -> tuple[Space, ...]:
    """Bundles named after their first space; their widths change together, or not at all."""
    members: dict[str, list[Space]] = defaultdict(list)
    for s in spaces:
        if s.bundle is not None:
            members[s.bundle].append(s)
    found = []
    for s in spaces:
        if s.bundle is not None:
            others = members[s.bundle]
            s = replace(s, bundle=others[0].name, group=others[0].name)
            stiff = next((o for o in others if o.kind != "elastic"), None)
            if s.kind == "elastic" and (stiff is not None or any(o.heads != s.heads for o in others)):
                why = "its heads are not of one number" if stiff is None else f"goes with the heads of {stiff.name}"
                s = replace(s, kind="permutable", reasons=(why,))
        found.append(s)
    return tuple(found)


def _with_equal_widths(spaces: tuple[Space, ...], weights: list[tuple[str, ...]]) -> tuple[Space, ...]:
    """Spaces that these weights read along axis 1 in groups of one width, named after their first; where one of them
    cannot change it, the others cannot either."""
    leader = {s.name: s.name for s in spaces}
    for names in weights:
        read = {s.name for s in spaces for b in s.bindings if b.parameter in names and (b.axis, b.role) == (1, "reads")}
        first = next(leader[s.name] for s in spaces if s.name in read)
        old = {leader[name] for name in read}
        leader = {name: first if own in old else own for name, own in leader.items()}
    found = []
    for s in spaces:
        others = [o for o in spaces if leader[o.name] == leader[s.name]]
        if len(others) > 1:
            s = replace(s, group=leader[s.name])
            stiff = next((o for o in others if o.kind != "elastic" or o.blocks is not None), None)
            if s.kind == "elastic" and stiff is not None:
                s = replace(s, kind="permutable", reasons=(f"its width goes with that of {stiff.name}",))
        found.append(s)
    return tuple(found)


def _merge_norms(norms: list[Norm]) -> list[Norm]:
    """One entry for a normalisation that is used in several places."""
    sources: dict[tuple[str, str], set[str]] = defaultdict(set)
    for n in norms:
        sources[n.mean, n.var].update(n.sources)
    return [Norm(mean, var, tuple(sorted(s))) for (mean, var), s in sources.items()]
