"""From what the library finds wrong to the line of the recipe that says it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...errors import FusionError, RecipeError


def located(error: FusionError, path: Path, lines: Mapping[str, int]) -> FusionError:
    """The error with the line of the recipe that its message starts with; as it is where there is none.

    Messages of the library start with the option, the file, the factory or the model that they are about.

    Args:
        error: raised while the recipe was carried out.
        path: of the recipe.
        lines: what a message may start with → its line.
    """
    message = str(error)
    starts = [word for word in lines if message.startswith(word)]
    if isinstance(error, RecipeError) or not starts:
        return error
    return RecipeError([f"{path}:{lines[max(starts, key=len)]}: {message}"])
