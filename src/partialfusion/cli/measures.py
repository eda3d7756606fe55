"""What `--evaluate` means: a file of inputs and labels, or a function of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


def is_function(text: str) -> bool:
    """Whether a text names a function; a file may have a colon in its name too, if it is there."""
    return ":" in text and not Path(text).exists()


def load_measure(
    text: str, batch: int, inputs: tuple[Tensor, ...]
) -> Callable[[nn.Module], Any] | list[tuple[Tensor, ...]]:
    """A function of a model, or batches of inputs and labels."""
    if is_function(text):
        from ..io.factories import load_measure

        return load_measure(text)
    from ..io.datafiles import load_labelled

    return load_labelled(text, batch, like=inputs)


def files_read(data: Path | None, evaluate: str | None) -> list[Path]:
    """The files of data, which must not be overwritten."""
    labelled = [] if evaluate is None or is_function(evaluate) else [Path(evaluate)]
    return [*([] if data is None else [data]), *labelled]
