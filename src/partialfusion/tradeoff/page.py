"""A frontier as the plain data that the interactive page shows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arrays import Floats
from ..core.text import mix_text
from .point import Point, SpacePoint, slower_than_ensemble

if TYPE_CHECKING:
    from .result import Frontier

BINS = 24
ALL = ""  # the name of all spaces together


def content(frontier: Frontier, title: str) -> dict[str, Any]:
    """What `report.html.frontier_page` takes.

    Points refer to their details by number: fusions that differ in the mix alone share them, and so does the page.
    Histograms of one space have the same bins at all sizes and mixes of a method, so that they can be compared.
    """
    bins = _Bins(frontier.points)
    details = _Distinct()
    front = set(map(id, frontier.pareto()))
    mixes = list(dict.fromkeys(p.mix for p in frontier.points if p.kind != "parent"))
    axes = axes_of(frontier.points)
    points = [
        {
            "kind": p.kind,
            "method": p.method,
            "alpha": p.alpha,
            "budget": p.budget,
            "mix": None if p.kind == "parent" else mixes.index(p.mix),
            "score": p.score,
            "dense": p.dense,
            "effective": p.effective,
            "flops": p.flops,
            "latency": None if p.latency is None else {form: float(f"{r:.4g}") for form, r in p.latency.items()},
            "slower": list(slower_than_ensemble(p, frontier.points)),
            "sizes": {axis.key: axis.of(p) for axis in axes},
            "seconds": round(p.seconds, 3),
            "features": p.features,
            "converged": p.converged,
            "pareto": id(p) in front,
            "error": p.error,
            "detail": details.number(_detail(p, bins)) if p.spaces else None,
        }
        for p in frontier.points
    ]
    return {
        "title": title,
        "metric": frontier.metric,
        "percent": frontier.metric == "accuracy" and all(0 <= p.score <= 1 for p in frontier.points if p.score),
        "complete": frontier.complete,
        "samples": frontier.samples,
        "axis": frontier.size,
        "axes": [{"key": a.key, "name": a.name, "single": a.single, "counts": a.counts} for a in axes],
        "models": list(frontier.names),
        "mixes": [{"text": mix_text(m), "shares": [round(s, 4) for s in m]} for m in mixes],
        "points": points,
        "details": details.values,
        "bins": bins.edges(),
    }


@dataclass(frozen=True)
class Axis:
    """What the size of a network may be.

    Attributes:
        key: its name in the page's data.
        name: what the page calls it.
        of: its value for a point; None where it is not known.
        single: its value for the last model.
        counts: whether it counts something; otherwise it is relative to the last model.
    """

    key: str
    name: str
    of: Callable[[Point], float | None]
    single: float
    counts: bool


def axes_of(points: Sequence[Point]) -> list[Axis]:
    """The sizes that are known of some fused network and of the last model."""
    sizes: list[tuple[str, str, Callable[[Point], float | None]]] = [
        ("dense", "parameters of the module", lambda p: p.dense),
        ("effective", "parameters as blocks or in a file", lambda p: p.effective),
        ("flops", "operations (FLOPs) of the module", lambda p: p.flops),
        ("latency-dense", "measured latency of the module", lambda p: _time(p, "dense")),
        ("latency-blocks", "measured latency as blocks", lambda p: _time(p, "blocks")),
        ("latency-auto", "measured latency, blocks where faster", lambda p: _time(p, "auto")),
    ]
    last = next((p for p in reversed(points) if p.kind == "parent"), None)
    found = []
    for key, name, of in sizes:
        single = None if last is None else of(last)
        if single and any(of(p) is not None for p in points if p.kind == "fused"):
            found.append(Axis(key, name, of, single, counts=not key.startswith("latency")))
    return found


def _time(point: Point, form: str) -> float | None:
    return None if point.latency is None else float(f"{point.latency[form]:.4g}")


class _Distinct:
    """Values, each once, by number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        key = json.dumps(value, sort_keys=True)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


class _Bins:
    """Edges of the histograms: of similarities one for all; of costs for every method, whose units are its own, and
    there for every space and for all together."""

    def __init__(self, points: Sequence[Point]) -> None:
        spaces = [s for p in points for s in p.spaces]
        self.costs = {
            method: _cost_edges([s for p in points if p.method == method for s in p.spaces])
            for method in dict.fromkeys(p.method for p in points if p.spaces)
        }
        lowest = min(
            (float(v.min()) for s in spaces for v in (s.similarity.fused, s.similarity.isolated) if v.size), default=0
        )
        low = min(0.0, max(-1.0, math.floor(lowest * 5) / 5))
        self.similarity = np.linspace(low, 1.0, BINS + 1)

    def edges(self) -> dict[str, Any]:
        return {
            "costs": {
                method: {space: [0.0, float(edges[-1])] for space, edges in own.items()}
                for method, own in self.costs.items()
            },
            "similarity": [float(self.similarity[0]), 1.0],
        }

    def of(self, spaces: Sequence[SpacePoint], method: str, name: str) -> dict[str, list[int]]:
        """Counts of costs, and of similarities of what is fused and what is isolated, in some spaces together."""
        costs, fused, isolated = (
            np.concatenate([np.empty(0), *(getattr(s.similarity, part) for s in spaces)])
            for part in ("costs", "fused", "isolated")
        )
        return {
            "costs": _counts(costs, self.costs[method][name]),
            "alike": _counts(fused, self.similarity),
            "apart": _counts(isolated, self.similarity),
        }


def _cost_edges(spaces: Iterable[SpacePoint]) -> dict[str, Floats]:
    """Space → edges from zero to its largest cost; all spaces together to the largest of all."""
    largest = {ALL: 0.0}
    for space in spaces:
        costs, name = space.similarity.costs, space.summary.name
        own = float(costs.max()) if costs.size else 0.0
        largest[name] = max(largest.get(name, 0.0), own)
        largest[ALL] = max(largest[ALL], own)
    return {name: np.linspace(0.0, most or 1.0, BINS + 1) for name, most in largest.items()}


def _counts(values: Floats, edges: Floats) -> list[int]:
    """One count per bin; nothing where there is nothing to count."""
    if not values.size:
        return []
    return [int(n) for n in np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]]


def _detail(point: Point, bins: _Bins) -> dict[str, Any]:
    free = [s for s in point.spaces if s.summary.kind != "rigid"]
    return {
        "all": bins.of(free, point.method, ALL),
        "spaces": [
            {
                "name": s.summary.name,
                "kind": s.summary.kind,
                "before": s.summary.before,
                "after": s.summary.after,
                "fused": s.summary.fused,
                "isolated": list(s.summary.isolated),
                "combined": s.summary.combined,
                "deleted": s.summary.deleted,
                "cost": float(f"{s.summary.cost:.5g}"),
                **bins.of([s], point.method, s.summary.name),
            }
            for s in free
        ],
    }
