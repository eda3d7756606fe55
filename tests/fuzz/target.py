"""A kind of file, and one function that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from partialfusion.io.digest import digest


@dataclass(frozen=True)
class Target:
    """A kind of file and one function that reads it.

    Attributes:
        name: the function and the kind of file.
        file: the path of the valid file, inside the corpus; where it is in a folder there, that is changed as a whole.
        read: returns what the file holds, so that two results can be compared, given a folder with the file in it.
        guarded: whether a digest in the file covers all of it, so that a changed file may not give another result.
    """

    name: str
    file: str
    read: Callable[[Path], Any]
    guarded: bool = False


def fingerprint(state: Mapping[str, Tensor]) -> str:
    return digest(state.items())
