"""A network trained, and what it can do alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..recipes import Training
from ..samples import unseen
from ..trained import trained
from ..training import accuracy


@dataclass(frozen=True)
class Train:
    """Train a network, unless there is a checkpoint of it; result: its accuracy on the test images."""

    recipe: Training
    tested: int | None = None

    def run(self) -> dict[str, Any]:
        return {"accuracy": accuracy(trained(self.recipe), unseen(self.recipe.share.data, self.tested))}
