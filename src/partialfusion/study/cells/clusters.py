"""Clustering algorithms compared by what they reach and what it is worth."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .compress import Compress


@dataclass(frozen=True)
class Clusters(Compress):
    """As `Compress`, with the processor time of the whole; times are of the machine it ran on."""

    def run(self) -> dict[str, Any]:
        started = time.process_time()
        found = super().run()
        return found | {"processor_seconds": round(time.process_time() - started, 3)}
