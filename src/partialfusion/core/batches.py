"""Batches of inputs, from whatever the user has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ..errors import DataError
from .modules import first_line, shapes_of, to_device_of


def feed(model: nn.Module, batch: tuple[Any, ...], number: int) -> Any:
    """The model's output on a batch; what it rejects is the data's fault."""
    shapes = shapes_of(batch)
    if any(isinstance(x, Tensor) and x.numel() == 0 for x in batch):
        raise DataError(f"batch {number} of shapes {shapes} holds no samples: leave empty batches out")
    try:
        return model(*to_device_of(model, batch))
    except Exception as error:
        hint = " Use batches of more than one sample." if "more than 1 value per channel" in str(error) else ""
        raise DataError(
            f"batch {number} of shapes {shapes} does not run through {type(model).__name__}: {first_line(error)}.{hint}"
        ) from error


class Batches:
    """Iterates over the inputs of a user's batches, as often as needed.

    A batch is a tensor, or a tuple or list that starts with the model's inputs; what follows (labels) is dropped. An
    iterator that can be read only once is kept in memory.
    """

    def __init__(self, data: Iterable[Any], inputs: int) -> None:
        self.data = list(data) if isinstance(data, Iterator) else data
        self.inputs = inputs

    @classmethod
    def of(cls, data: Iterable[Any] | None, inputs: int) -> Batches | None:
        if data is None:
            return None
        if isinstance(data, Tensor):
            raise DataError(
                f"data is one tensor of shape {tuple(data.shape)}: pass an iterable of batches, for one batch [tensor]"
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
