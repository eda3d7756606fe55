"""Clustering algorithms compared by what they reach and what it is worth."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from .compress import Compress


@dataclass(frozen=True)
class Clusters(Compress):
    """As `Compress`, with the processor time of the whole; times are of the machine it ran on."""

    def run(self) -> dict[str, Any]:
        warm_up = Compress(self.model, replace(self.way, restarts=self.way.restarts and 1), self.keep, 10, self.seed)
        warm_up.run()  # models, traces and compiled code are of no account
        started = time.process_time()
        found = super().run()
        return found | {"processor_seconds": round(time.process_time() - started, 3)}
