"""The methods of this library that take part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

import partialfusion as pf

from .tasks import Case, Task

NAMES = {"partial-ot": "partial OT", "cluster": "cluster", "interpolate": "interpolate"}


@dataclass(frozen=True)
class Ours:
    """One way to call `pf.fuse` or `pf.prune`.

    Attributes:
        name: what the table calls it.
        options: of the call, beside the networks, the images and the size.
        bounded: give the size as a budget, so that every layer finds its own, instead of one fraction for all layers.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    bounded: bool = False
    group: str = "ours"

    def suits(self, task: Task) -> bool:
        """Partial OT needs two networks."""
        return task.merges or self.options.get("method") != "partial-ot"

    def run(self, case: Case) -> nn.Module:
        options: dict[str, Any] = {"data": case.data, "progress": False, "round_to": 1} | self.options
        options |= self._size(case)
        if case.task.merges:
            return pf.fuse(case.models, case.example, mix=case.mix, **options).model
        return pf.prune(case.models[0], case.example, **options).model

    def _size(self, case: Case) -> dict[str, Any]:
        if self.bounded:
            return {"budget": pf.Budget(dense=case.budget())}
        return {"alpha": case.task.alpha} if case.task.merges else {"keep": case.task.keep}


def methods() -> Iterator[Ours]:
    """Every method before and after refitting; with a budget; and what the library chooses."""
    for method, name in NAMES.items():
        yield Ours(name, {"method": method})
        yield Ours(f"{name}, refit", {"method": method, "refit": True})
    for method in ("cluster", "interpolate"):
        yield Ours(f"{NAMES[method]}, budget, refit", {"method": method, "refit": True}, bounded=True)
    yield Ours("auto", {"method": "auto"})
    yield Ours("auto, budget", {"method": "auto"}, bounded=True)
