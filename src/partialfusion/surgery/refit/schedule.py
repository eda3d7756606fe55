"""How often the networks run: which layers share a pass over the data, and what is kept in memory between passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...core.inputs import Inputs
from ...core.modules import at_rest, named_tensors
from ...errors import DataError
from .steps import Step
from .targets import Targets, TargetSource, Union

# Samples and positions that a layer is fitted on, at least, and per input: early convolutions have millions.
ENOUGH = 1 << 14
PER_INPUT = 64
# Bytes of batches, and of targets, that are kept so that the sources need not run again for every layer.
KEPT = 1 << 29

Source = Callable[[Inputs, int], Targets]


class Data:
    """The batches, kept in memory if they are small: then every pass sees the same ones, in the same order."""

    def __init__(self, batches: Iterable[Inputs]) -> None:
        self.batches, self.count = batches, 0
        kept: list[Inputs] = []
        size = 0
        for batch in batches:
            self.count += 1
            size += sum(t.numel() * t.element_size() for t in batch.tensors)
            if size <= KEPT or not kept:
                kept.append(batch)
            else:
                del kept[1:]
        if not kept:
            raise DataError("the data holds no batch: refitting needs at least one")
        self.first, self.stays = kept[0], size <= KEPT
        if self.stays:
            self.batches = kept

    def __iter__(self) -> Iterator[Inputs]:
        return iter(self.batches)


def passes(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that one pass over the data can serve: those that read the same tensor, once."""
    joined: dict[int, list[Step]] = {}
    found: list[list[Step]] = []
    for step in steps:
        if step.uses == 1 and step.source in joined:
            joined[step.source].append(step)
            continue
        found.append([step])
        if step.uses == 1:
            joined[step.source] = found[-1]
    return found


def with_targets(union: Union, steps: Sequence[Step], data: Data) -> Iterator[tuple[list[Step], Source]]:
    """Every pass, with what gives its targets for a batch; the sources run once for as many passes as can be kept."""
    tensors = named_tensors(union.fused)
    fractions, sizes = {}, {}
    for s in steps:
        rows, width = s.rows * s.uses * data.count, s.layout.outputs(tensors[s.key])
        fractions[s.key] = min(1.0, max(ENOUGH, PER_INPUT * (tensors[s.key].numel() // width)) / max(1, rows))
        sizes[s.key] = 4 * int(fractions[s.key] * rows) * width
    waiting = passes(steps)
    while waiting:
        some = _fitting(waiting, sizes) if data.stays else waiting[:1]
        waiting = waiting[len(some) :]
        source = TargetSource(union, [s for group in some for s in group], fractions)
        if len(some) == 1:
            yield some[0], source
            continue
        with at_rest(*union.models):
            kept = [source(batch, number) for number, batch in enumerate(data)]
        for group in some:
            yield group, _Kept(kept)


def _fitting(groups: Sequence[list[Step]], sizes: Mapping[str, int]) -> list[list[Step]]:
    """As many of the first passes as there is room for, at least one."""
    room, taken = KEPT, 0
    for group in groups:
        room -= sum(sizes[s.key] for s in group)
        if room < 0:
            break
        taken += 1
    return list(groups[: max(1, taken)])


class _Kept:
    """Targets of all batches."""

    def __init__(self, kept: Sequence[Targets]) -> None:
        self.kept = kept

    def __call__(self, batch: Inputs, number: int) -> Targets:
        return self.kept[number]
