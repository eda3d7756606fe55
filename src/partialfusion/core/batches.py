"""Batches of inputs, from any iterable that the user passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from ..errors import DataError
from .inputs import Inputs, Signature
from .modules import first_line

T = TypeVar("T")


def feed(model: nn.Module, batch: Inputs, number: int) -> Any:
    """The model's output on a batch; an error of the model becomes a DataError about the batch."""
    if batch.defect:
        raise DataError(f"batch {number}: {batch.defect}; leave such batches out")
    try:
        return batch.call(model)
    except Exception as error:
        hint = " Use batches of more than one sample." if "more than 1 value per channel" in str(error) else ""
        raise DataError(
            f"batch {number} of shapes {batch.shapes} does not run through {type(model).__name__}: "
            f"{first_line(error)}.{hint}"
        ) from error


def readable(data: Iterable[Any]) -> Iterable[Any]:
    """A user's `data` option as batches that can be read any number of times."""
    if isinstance(data, Tensor):
        raise DataError(
            f"data is one tensor of shape {tuple(data.shape)}: pass an iterable of batches, [tensor] for one batch"
        )
    if isinstance(data, Mapping):
        raise DataError("data is one mapping: pass an iterable of batches, [mapping] for one batch")
    if not isinstance(data, Iterable):
        raise DataError(f"data must be an iterable of batches, not {type(data).__name__}")
    return list(data) if isinstance(data, Iterator) else data


def first_of(batches: Iterable[T]) -> T:
    """The first batch, which there must be."""
    for batch in batches:
        return batch
    raise DataError("the data holds no batch: pass at least one batch of inputs")


class Batches:
    """The inputs of a user's batches, iterable any number of times.

    A batch is what `Signature.inputs` takes; labels and whatever else it holds are dropped. The batches of an
    iterator, which can be read only once, are kept in memory.

    Args:
        data: the user's batches.
        signature: how the model is called.
    """

    def __init__(self, data: Iterable[Any], signature: Signature) -> None:
        self.data = readable(data)
        self.signature = signature

    @classmethod
    def of(cls, data: Iterable[Any] | None, signature: Signature) -> Batches | None:
        """The batches of a user's `data` option, which must hold at least one; None stays None."""
        if data is None:
            return None
        batches = cls(data, signature)
        first_of(batches)
        return batches

    def __iter__(self) -> Iterator[Inputs]:
        return map(self.signature.inputs, self.data)
