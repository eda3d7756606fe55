"""Inputs like the example inputs that show more of what a model computes: the example may show little of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .inputs import Inputs, run

Results = list[Tensor]
STEPS = 3  # of a sequence whose example has one


def probes(model: nn.Module, inputs: Inputs, seed: int, count: int = 2) -> list[tuple[Inputs, Results]]:
    """At most so many inputs at random, and what the model returns for them in evaluation mode.

    Numbers are drawn from the normal distribution, and integers that a table is looked up with from all of its rows;
    other integers stay. Masks stay in the first of them; in the others they show everything, and sequences of a
    single step are longer. Inputs that the model does not run on, or answers with NaN, are left out; so are those that
    are no other than the example.
    """
    generator = torch.Generator().manual_seed(seed)
    leaves: list[Any] = []
    inputs.map(leaves.append)
    rows = _rows(model, inputs, leaves)
    found = []
    for k in range(count):
        for ones, longer in [(None, False)] if k == 0 else _variants(leaves, rows):
            tried = _drawn(inputs, rows, generator, ones, STEPS if longer else 1)
            results = None if tried is None else _results(model, tried)
            if tried is not None and results is not None:
                found.append((tried, results))
                break
    return found


def _results(model: nn.Module, inputs: Inputs) -> Results | None:
    """What a model returns; None where it raises or where that is not finite."""
    try:
        results = run(model, inputs)
    except Exception:  # whatever the code of a model raises for inputs that it does not expect
        return None
    return results if all(bool(torch.isfinite(t).all()) for t in results) else None


def _variants(leaves: list[Any], rows: list[int | None]) -> Iterator[tuple[bool | None, bool]]:
    """What masks are filled with, and whether sequences get longer, from what shows most to the example's own."""
    pairs = list(zip(leaves, rows, strict=True))
    fills = (True, False, None) if any(_is_mask(leaf, n) for leaf, n in pairs) else (None,)
    lengths = (True, False) if any(_is_one_step(leaf, n) for leaf, n in pairs) else (False,)
    return itertools.product(fills, lengths)


def _drawn(
    inputs: Inputs, rows: list[int | None], generator: torch.Generator, ones: bool | None, steps: int
) -> Inputs | None:
    """Inputs at random; None if nothing of them is."""
    counts, changed = iter(rows), []

    def drawn(value: Any) -> Any:
        n = next(counts)
        if not isinstance(value, Tensor):
            return value
        shape = list(value.shape)
        if steps > 1 and (_is_one_step(value, n) or (_is_mask(value, n) and shape[1:] == [1])):
            shape[1] = steps
        if _is_mask(value, n):
            changed.extend([] if ones is None else [value])
            return value.expand(shape) if ones is None else torch.full_like(value, int(ones)).expand(shape)
        if value.is_floating_point():
            changed.append(value)
            return torch.randn(shape, generator=generator).to(value)
        if n is not None:
            changed.append(value)
            return torch.randint(n, shape, generator=generator).to(value)
        return value

    found = inputs.map(drawn)
    return found if changed else None


def _is_mask(value: Any, rows: int | None) -> bool:
    """Whether a tensor says what is hidden: truth values, or integers that are zero or one and no index."""
    if not isinstance(value, Tensor) or value.dim() == 0 or value.is_floating_point() or value.is_complex():
        return False
    return value.dtype == torch.bool or (rows is None and bool(((value == 0) | (value == 1)).all()))


def _is_one_step(value: Any, rows: int | None) -> bool:
    """Whether a tensor may be a batch of sequences with one step each: of indices, or of vectors."""
    if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[1] != 1:
        return False
    return value.dim() == 2 if rows is not None else value.dim() == 3 and value.is_floating_point()


def _rows(model: nn.Module, inputs: Inputs, leaves: list[Any]) -> list[int | None]:
    """For every input, how many rows the smallest table has that is looked up with it; None where none is."""
    with _Lookups() as lookups:
        try:
            run(model, inputs)
        except Exception:  # the caller runs the model on these inputs, too, and says what is wrong
            return [None] * len(leaves)

    def rows_of(leaf: Any) -> int | None:
        if not isinstance(leaf, Tensor) or leaf.dtype not in (torch.int32, torch.int64):
            return None
        own = leaf.flatten().cpu()
        return min((n for index, n in lookups.seen if torch.equal(index, own.to(index))), default=None)

    return [rows_of(leaf) for leaf in leaves]


class _Lookups(TorchFunctionMode):
    """Records the indices that tables are looked up with, and how many rows these have."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (F.embedding, F.embedding_bag):
            named = {**dict(zip(("input", "weight"), args, strict=False)), **kwargs}
            self._note(named["input"], named["weight"])
        elif func is Tensor.__getitem__ and len(args) == 2:
            self._note(args[1], args[0])
        return func(*args, **kwargs)

    def _note(self, index: Any, table: Any) -> None:
        if isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64) and table.dim():
            self.seen.append((index.detach().flatten().cpu(), table.shape[0]))
