"""From labels to channel spaces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.arrays import Ints
from .compare import operations
from .labels import FIXED, Labels, Mark, scramble
from .spaces import OUTPUT, OUTPUT_GROUP, AxisBinding, Blueprint, Kind, Norm, NormBinding, Role, Space
from .ties import tied_to_norms
from .tracer import AxisLabels, Tracer

FIXED_ONLY = torch.tensor([FIXED])


@dataclass(frozen=True, eq=False)
class Members:
    """The channels of a space, in the order in which the network first computes them.

    Attributes:
        places: axis, by its number → (units × multiplicity) where they are on it.
        marks: what was said of them.
        bundle: the blocks that may be exchanged with those that they lie in; None where they lie in none.
        blocks: (units,) the block of each.
    """

    places: dict[int, Ints]
    marks: list[Mark]
    bundle: int | None
    blocks: Ints


def collect(tracer: Tracer) -> Blueprint:
    """Channels with the same bindings and the same marks form a space."""
    bound = [b for group in tracer.bound.values() for b in group] + _direct_axes(tracer)
    scalars = _scalars(tracer)
    bound += [b for b, _ in scalars.values()]
    tied = tied_to_norms(tracer.program, bound)
    shared = _mark_conflicts(tracer, bound, tied)
    normed = [AxisLabels(path, 0, "scales", labels, None) for path, labels in tracer.normed.items()]
    axes = [*bound, *normed]
    spaces = [_space(axes, len(bound), members) for members in _alike(tracer, axes)]
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


def _alike(tracer: Tracer, bound: list[AxisLabels]) -> list[Members]:
    """The channels, those together that are on the same axes as often, have the same marks, lie in blocks that may be
    exchanged, and were handled by the same operations."""
    labels = tracer.labels
    labels.glue_blocks()
    unit_of = labels.units()
    _mark_groups_of_outputs(tracer, bound, unit_of)
    count = len(unit_of)
    on_axes, known = torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.bool)
    for number, b in enumerate(bound):
        roots = unit_of[b.labels]
        on_axes.index_add_(0, roots, torch.full((len(roots),), scramble(number)))
        known[roots] = True
    known[: FIXED + 1] = False
    bundle, block = _put_into_blocks(tracer, unit_of)
    _stiffen_members(tracer)
    marked = torch.zeros(count, dtype=torch.long)
    for number, (found, times, _) in enumerate(labels.marks):
        marked.index_add_(0, unit_of[found], times * scramble(number))
    units = torch.nonzero(known).flatten()
    features = torch.stack([on_axes, marked, bundle, labels.histories(unit_of)], 1)[units]
    group = np.full(count, -1)
    group[units.numpy()] = _in_order_of_appearance(features.unique(dim=0, return_inverse=True)[1].numpy())
    return _members(tracer, bound, unit_of.numpy(), units.numpy(), group, (bundle.numpy(), block.numpy()))


def _mark_groups_of_outputs(tracer: Tracer, bound: list[AxisLabels], unit_of: Tensor) -> None:
    """Mark hidden channels that move together with outputs, such as those that a last layer with groups reads."""
    labels = tracer.labels
    outputs = torch.cat([FIXED_ONLY, *(found for found, _, mark in labels.marks if mark.reason == OUTPUT)])
    written = torch.cat([FIXED_ONLY, *(labels.find(b.labels) for b in bound)]).unique()
    hidden = torch.isin(unit_of[written], unit_of[outputs]) & ~torch.isin(written, outputs) & (written > FIXED)
    if bool(hidden.any()):
        tracer.rigid(written[hidden], OUTPUT_GROUP)


def _in_order_of_appearance(classes: Ints) -> Ints:
    """The same classes, numbered in the order in which they first occur."""
    _, first, which = np.unique(classes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[which]


def _members(
    tracer: Tracer, bound: list[AxisLabels], unit_of: Ints, units: Ints, group: Ints, blocks: tuple[Ints, Ints]
) -> list[Members]:
    """The channels of every group: `group` has the number of each unit's, −1 for what is none."""
    if not len(units):
        return []
    sizes = np.bincount(group[units])
    places: list[dict[int, Ints]] = [{} for _ in sizes]
    for number, b in enumerate(bound):
        one = b.parameter in tracer.scalars and tracer.program.tensors[b.parameter].numel() == 1
        roots = unit_of[b.labels.numpy()]
        order = np.argsort(roots, kind="stable")
        order = order[roots[order] > FIXED]
        here = group[roots[order]]
        for g in np.unique(here):
            index = order[here == g].reshape(sizes[g], -1)
            places[g][number] = np.zeros_like(index) if one else index
    marks: list[list[Mark]] = [[] for _ in sizes]
    for found, _, mark in tracer.labels.marks:
        for g in np.unique(group[unit_of[found.numpy()]]):
            if g >= 0:
                marks[g].append(mark)
    members = [units[part] for part in np.split(np.argsort(group[units], kind="stable"), np.cumsum(sizes)[:-1])]
    bundles = [int(blocks[0][own[0]]) for own in members]
    return [
        Members(where, said, None if bundle < 0 else bundle, blocks[1][own])
        for where, said, bundle, own in zip(places, marks, bundles, members, strict=True)
    ]


def _stiffen_members(tracer: Tracer) -> None:
    """What cannot be moved as a block cannot be moved channel by channel either: a mean of outputs is an output."""
    labels = tracer.labels
    parent = labels.parents()
    children = torch.nonzero(parent).flatten()
    for found, _, mark in list(labels.marks):
        if mark.kind == "rigid":
            members = children[torch.isin(parent[children], labels.find(found))]
            labels.mark(members, mark)


def _put_into_blocks(tracer: Tracer, unit_of: Tensor) -> tuple[Tensor, Tensor]:
    """(labels,) for every unit, which blocks may be exchanged with its own, those that one operation found, and its
    block; −1 and 0 for what lies in none."""
    labels = tracer.labels
    parent = labels.parents()
    alike = Labels()
    alike.root = torch.arange(len(labels.root))
    for rows, parents in labels.nests:
        heads = labels.find(parents)
        alike.unite(heads, heads[:1].expand_as(heads))
        if len(heads.unique()) < len(rows):
            tracer.rigid(rows, "lies in blocks that overlap")
    bundle, block = np.full(len(labels.root), -1), np.zeros(len(labels.root), np.int64)
    child = torch.nonzero(parent).flatten()
    above = parent[child]
    placed = torch.stack([unit_of[child], unit_of[above]], 1).reshape(-1).numpy()
    bundle[placed] = alike.root[above].repeat_interleave(2).numpy()
    block[placed] = unit_of[above].repeat_interleave(2).numpy()
    return torch.from_numpy(bundle), torch.from_numpy(block)


def _space(bound: list[AxisLabels], parameters: int, members: Members) -> Space:
    """A space of channels that are alike; of the axes `bound`, the first `parameters` are those of parameters, the
    others those of norms."""
    order = np.argsort(next(iter(members.places.values()))[:, 0], kind="stable")
    order = order[np.argsort(_in_order_of_appearance(members.blocks[order]), kind="stable")]  # blocks side by side
    bindings, norms = [], []
    for number, places in members.places.items():
        b, index = bound[number], places[order]
        if number < parameters:
            bindings.append(AxisBinding(b.parameter, b.axis, b.role, index, b.dim))
        else:
            norms.append(NormBinding(b.parameter, index))
    kinds: dict[str, list[str]] = defaultdict(list)
    for mark in members.marks:
        kinds[mark.kind].append(mark.reason)
    kind: Kind = "rigid" if kinds["rigid"] else "permutable" if kinds["permutable"] else "elastic"
    reasons = tuple(dict.fromkeys(kinds["rigid"] or kinds["permutable"]))
    space = Space("", len(order), kind, reasons, tuple(bindings), norms=tuple(norms))
    if members.bundle is None:
        return space
    blocks = _in_order_of_appearance(members.blocks[order])
    sizes = np.bincount(blocks)
    if sizes.min() != sizes.max():
        kind, reasons = "rigid", ("lies in blocks of different sizes",)
    return replace(space, kind=kind, reasons=reasons, blocks=blocks, bundle=str(members.bundle), step=int(sizes.min()))


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
