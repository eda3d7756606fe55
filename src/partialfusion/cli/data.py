"""The data that commands read: unlabelled inputs for --data, and what --evaluate names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from ..io.datafiles import Examples

HF = "hf:"  # what a factory that is a local folder begins with


def load_data(data: Path | None, batch: int, inputs: Examples | None) -> list[Any] | None:
    """Batches of the inputs in a file; None without a file."""
    if data is None:
        return None
    from ..io.datafiles import load_batches

    return load_batches(data, batch, like=inputs)


def is_function(text: str) -> bool:
    """Whether --evaluate names a function rather than a file; the name of an existing file may have a colon too."""
    return ":" in text and not os.path.exists(text)


def load_evaluate(text: str, batch: int, inputs: Examples | None) -> Callable[[nn.Module], Any] | list[Any]:
    """The value of the library's `evaluate`: a function of a model, or batches of inputs and labels."""
    if is_function(text):
        from ..io.factories import load_evaluate_function

        return load_evaluate_function(text)
    from ..io.datafiles import load_labelled

    return load_labelled(text, batch, like=inputs)


def input_files(factories: Iterable[str], data: Path | None = None, evaluate: str | None = None) -> list[Path]:
    """The files that --data and --evaluate name, and the folders of factories, which must not be overwritten."""
    folders = [Path(text.removeprefix(HF).partition(",")[0]) for text in factories if text.startswith(HF)]
    labelled = [] if evaluate is None or is_function(evaluate) else [Path(evaluate)]
    return [*folders, *([] if data is None else [data]), *labelled]
