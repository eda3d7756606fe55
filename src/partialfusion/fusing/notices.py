"""What a user is told while a result is made: every warning once, however many results share it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch import nn

from ..blueprint import Blueprint
from ..core.text import shorten
from .options import Recipe
from .shortfall import averaging_note

log = logging.getLogger(__name__)


class Notices:
    """Warnings that were given already."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def once(self, *notes: str) -> None:
        for note in notes:
            if note not in self._told:
                log.warning("%s", note)
        self._told.update(notes)

    def unseen(self, spaces: Sequence[str]) -> None:
        """Nobody should believe that activations were compared where none were seen; one warning for each space."""
        new = [space for space in spaces if space not in self._told]
        if new:
            log.warning("no activations were seen of %s: matched by weights instead", shorten(new))
        self._told.update(new)

    def averaging(
        self, models: Sequence[nn.Module], blueprint: Blueprint, recipe: Recipe, sizes: Mapping[str, float]
    ) -> None:
        """Nobody should believe that a network was fused of which a large part was only averaged."""
        if len(models) > 1 and not recipe.is_average:
            apart = any(sizes.values()) if sizes else recipe.alpha != 0.0
            note = averaging_note(models[-1], blueprint, apart=apart)
            self.once(*([note] if note else []))

    def operations(self, found: float | None, models: int) -> None:
        """A bound on parameters alone may make early layers wide, which have few of them and many operations."""
        if found is not None and found > models:
            log.warning(
                "the result takes %.2f times the operations of one model, more than the models one by one: bound them, "
                "too, as in pf.Budget(dense=…, flops=…)",
                found,
            )
