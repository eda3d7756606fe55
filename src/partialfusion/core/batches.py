"""Batches of inputs, from any iterable that the user passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ..errors import DataError
from .modules import first_line, shapes_of, to_device_of


def feed(model: nn.Module, batch: tuple[Any, ...], number: int) -> Any:
    """The model's output on a batch; an error of the model becomes a DataError about the batch."""
    shapes = shapes_of(batch)
    if any(isinstance(x, Tensor) and x.numel() == 0 for x in batch):
        raise DataError(f"batch {number} of shapes {shapes} holds no samples: leave out empty batches")
    try:
        return model(*to_device_of(model, batch))
    except Exception as error:
        hint = " Use batches of more than one sample." if "more than 1 value per channel" in str(error) else ""
        raise DataError(
            f"batch {number} of shapes {shapes} does not run through {type(model).__name__}: {first_line(error)}.{hint}"
        ) from error


class Batches:
    """The inputs of a user's batches, iterable any number of times.

    A batch is a tensor, or a tuple or list that starts with the model's inputs; anything after them (labels) is
    dropped. The batches of an iterator, which can be read only once, are kept in memory.

    Args:
        data: the user's batches.
        inputs: number of inputs that the model takes.
    """

    def __init__(self, data: Iterable[Any], inputs: int) -> None:
        self.data = list(data) if isinstance(data, Iterator) else data
        self.inputs = inputs

    @classmethod
    def of(cls, data: Iterable[Any] | None, inputs: int) -> Batches | None:
        """The batches of a user's `data` option, which must hold at least one; None stays None."""
        if data is None:
            return None
        if isinstance(data, Tensor):
            raise DataError(
                f"data is one tensor of shape {tuple(data.shape)}: pass an iterable of batches, [tensor] for one batch"
            )
        if not isinstance(data, Iterable):
            raise DataError(f"data must be an iterable of batches, not {type(data).__name__}")
        batches = cls(data, inputs)
        if next(iter(batches), None) is None:
            raise DataError("the data holds no batch: pass at least one batch of inputs")
        return batches

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.data:
            if isinstance(batch, Tensor) and self.inputs == 1:
                yield (batch,)
            elif isinstance(batch, (tuple, list)) and len(batch) >= self.inputs:
                yield tuple(batch[: self.inputs])
            else:
                raise DataError(
                    f"a batch is a {type(batch).__name__}; expected a tensor or a tuple that starts with the model's "
                    f"{self.inputs} input(s)"
                )
