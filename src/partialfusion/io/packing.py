"""Packing: of a fused parameter, only entries whose channels on all axes have a model in common are stored."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..blueprint import Blueprint, Space
from ..core.arrays import Bools, Ints
from ..core.blocks import blocks, fits
from ..core.text import shorten
from ..kernels import Plan
from ..surgery.support import ParameterSupport, parameter_supports

log = logging.getLogger(__name__)

Box = tuple[Ints, ...]  # positions on every axis; a box is all their combinations


@dataclass(frozen=True, eq=False)
class Packing:
    """How a tensor of the fused model becomes what is stored of it, and back.

    Attributes:
        shape: the shape of the tensor in the fused model.
        elastic: the axes whose length depends on the width of elastic spaces; another instance of the same class may
            be narrower or wider there.
        support: for every axis, which models write its positions; empty if the tensor is stored whole.
    """

    shape: tuple[int, ...]
    elastic: tuple[int, ...] = ()
    support: ParameterSupport = ()

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes that together hold every entry that can differ from zero exactly once.

        With two models and ordered channels a matrix has three: the rows of one model with the columns they read, the
        fused rows with all columns, the rows of the other model with the columns they read.
        """
        support = self.support or (None,) * len(self.shape)
        models = next((len(table[0]) for table in support if table is not None and len(table)), 1)
        return tuple(_boxes(self.shape, support, np.ones(models, bool)))

    @cached_property
    def size(self) -> int:
        """The number of entries that are stored."""
        return sum(math.prod(len(positions) for positions in box) for box in self.boxes)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return (self.size,) if self.support else self.shape

    def blocks(self) -> Iterator[tuple[Ints, tuple[Any, ...]]] | None:
        """What is stored, in its order, in blocks of rows: the rows, and the index of what is stored among their
        numbers. None where rows do not follow each other in what is stored, or where all of them are few."""
        count = math.prod(self.shape)
        if fits(count) or sum(len(rows) for rows, *_ in self.boxes) > self.shape[0]:
            return None
        return (
            (rows, _place((np.arange(len(rows)), *rest)))
            for all_rows, *rest in self.boxes
            for rows in blocks(all_rows, count // self.shape[0])
        )

    def pack(self, tensor: Tensor) -> Tensor:
        """What is stored of a tensor: itself, or the entries of the boxes one after the other."""
        if not self.support:
            return tensor
        return torch.cat([tensor.new_empty(0), *(tensor[_place(box)].reshape(-1) for box in self.boxes)])

    def unpack(self, stored: Tensor, target: Tensor) -> None:
        """Fill a tensor of the fused model with what was stored of it; zero elsewhere."""
        stored = stored.to(target)
        if not self.support:
            target.copy_(stored)
            return
        target.zero_()
        at = 0
        for box in self.boxes:
            shape = [len(positions) for positions in box]
            target[_place(box)] = stored[at : at + math.prod(shape)].view(shape)
            at += math.prod(shape)


def plan_packings(
    tensors: Mapping[str, Tensor], *, blueprint: Blueprint, layout: Mapping[str, Space], plan: Plan
) -> dict[str, Packing]:
    """Name → how the plan lets a tensor of the fused model be stored.

    Args:
        tensors: name → parameter or buffer of the fused model; only shapes matter.
        blueprint: the blueprint of the last source, which says which spaces are elastic.
        layout: where the units of every space are in the fused model.
        plan: which model writes which unit.
    """
    supports = parameter_supports({name: tuple(t.shape) for name, t in tensors.items()}, layout, plan)
    packings = {}
    for name, tensor in tensors.items():
        bound = blueprint.axes.get(name, {})
        elastic = tuple(sorted(axis for axis in bound if any(s.kind == "elastic" for s, _ in bound[axis])))
        packings[name] = Packing(tuple(tensor.shape), elastic, supports[name])
    return packings


def packed(
    packings: Mapping[str, Packing], tensors: Mapping[str, Tensor], *, expected: bool = False
) -> Iterator[tuple[str, Packing, Tensor]]:
    """For every tensor of a fused model its name, how it is stored, and what is stored of it.

    A tensor is stored whole if it has no zero blocks, or if they hold numbers by now (it was refitted with free zeros,
    trained without a mask, or edited): what is saved is what is loaded, except for the sign of zeros in zero blocks.

    Args:
        packings: name → how the tensor may be stored.
        tensors: name → parameter or buffer of the fused model.
        expected: whether zero blocks are known to hold numbers; if not, a warning names the tensors where they do.
    """
    filled = []
    for name, tensor in tensors.items():
        how = packings[name]
        stored = how.pack(tensor)
        if stored.numel() < tensor.numel():
            if int(stored.count_nonzero()) == int(tensor.count_nonzero()):
                yield name, how, stored
                continue
            filled.append(name)
        yield name, replace(how, support=()), tensor
    if filled and not expected:
        log.warning("%s hold numbers where a fusion leaves zeros: stored whole", shorten(filled))


def _boxes(shape: Sequence[int], support: Sequence[Bools | None], models: Bools) -> Iterator[Box]:
    """The boxes of the given axes, for entries whose positions on the axes before have these models in common."""
    if not shape:
        yield ()
        return
    last = all(table is None for table in support[1:])
    for positions, common in _groups(shape[0], support[0], models, last):
        for box in _boxes(shape[1:], support[1:], common):
            yield positions, *box


def _groups(length: int, table: Bools | None, models: Bools, last: bool) -> Iterator[tuple[Ints, Bools]]:
    """Positions of an axis, grouped by the models they still have in common, in the order of their first position.

    On the last axis that distinguishes models, only whether a model is left matters, not which.
    """
    if table is None:
        yield np.arange(length), models
        return
    common = table & models
    if last:
        common = np.repeat(common.any(1, keepdims=True), len(models), axis=1)
    sets, first, which = np.unique(common, axis=0, return_index=True, return_inverse=True)
    for group in np.argsort(first):
        if sets[group].any():
            yield np.flatnonzero(which.reshape(-1) == group), sets[group]


def _place(box: Box) -> tuple[Any, ...]:
    """The index of a box: slices where all its positions are contiguous, which copies nothing."""
    if all(len(p) and int(p[-1]) - int(p[0]) + 1 == len(p) for p in box):
        return tuple(slice(int(p[0]), int(p[-1]) + 1) for p in box)
    return tuple(torch.from_numpy(positions) for positions in np.ix_(*box))


def to_record(packings: Mapping[str, Packing]) -> dict[str, Any]:
    """Packings as JSON values; a support table that occurs on several axes is written once.

    The file format calls the support of a tensor its "reach".
    """
    tables: dict[tuple[int, str], int] = {}

    def number(table: Bools | None) -> int | None:
        if table is None:
            return None
        key = len(table), np.packbits(table, axis=1).tobytes().hex()
        return tables.setdefault(key, len(tables))

    tensors = {
        name: {"shape": p.shape, "elastic": p.elastic, "reach": [number(t) for t in p.support]}
        for name, p in packings.items()
    }
    return {"tensors": tensors, "tables": [text for _, text in tables]}


def from_record(record: Mapping[str, Any], models: int) -> dict[str, Packing]:
    """The packings of a record; raises KeyError, TypeError, IndexError or ValueError if it is malformed."""
    tables = [_table(text, models) for text in record["tables"]]
    found = {}
    for name, entry in record["tensors"].items():
        shape = tuple(int(n) for n in entry["shape"])
        elastic = tuple(int(axis) for axis in entry["elastic"])
        support = tuple(None if t is None else tables[int(t)] for t in entry["reach"])
        lengths = [n if t is None else len(t) for n, t in zip(shape, support, strict=True)] if support else list(shape)
        axes = range(len(shape))
        if tuple(lengths) != shape or any(n < 0 for n in shape) or any(axis not in axes for axis in elastic):
            raise ValueError(f"the blocks of {name} are not those of shape {shape}")
        found[name] = Packing(shape, elastic, support)
    return found


def _table(text: str, models: int) -> Bools:
    """(length × models) from the bits of its rows."""
    rows = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, -(-models // 8))
    return np.unpackbits(rows, axis=1, count=models).astype(bool)
