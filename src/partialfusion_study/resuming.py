"""Training that was stopped continues where it was: its state is stored beside the checkpoint that it will write."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from partialfusion.io.files import replacing

log = logging.getLogger(__name__)

INTERVAL = 60.0  # seconds between two states


@dataclass
class Resumable:
    """The state of a training run, in a file.

    Attributes:
        path: the file.
    """

    path: Path
    _stored: float = field(default_factory=time.monotonic)

    def load(self) -> dict[str, Any] | None:
        """The stored state, or None where there is none that can be read."""
        if not self.path.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            log.warning("%s cannot be read (%s): the training starts again", self.path, error)
            return None
        log.info("training continues from %s", self.path)
        return state

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        """Store the state, unless that was done within the last minute."""
        if time.monotonic() - self._stored >= INTERVAL:
            with replacing(self.path) as file:
                torch.save(state(), file)
            self._stored = time.monotonic()

    def done(self) -> None:
        """Remove the state."""
        self.path.unlink(missing_ok=True)
