"""The frontier: all networks that were measured, as rows, tables, files and a page."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core.literals import Size
from ..core.text import mix_text, table
from ..errors import OptionError
from ..io.files import StrPath, check_target, replacing
from .cost import FORMS
from .point import COLUMN, Point, SpacePoint, pareto, slower_than_ensemble

Column = tuple[str, str, Callable[[Point], str]]


@dataclass(frozen=True, repr=False, eq=False)
class Frontier:
    """What fusing trades, measured. Prints as a table.

    Attributes:
        points: parents, ensembles, then the fused networks; those that failed have an `error` and no score.
        names: names of the models.
        metric: what the scores are; larger is better.
        complete: False where measuring was interrupted.
        size: which parameters are the size of a network, "dense" or "effective".
        samples: how many samples each network was scored on, where that is known.
    """

    points: tuple[Point, ...]
    names: tuple[str, ...]
    metric: str = "score"
    complete: bool = True
    size: Size = "dense"
    samples: int | None = None

    @property
    def failed(self) -> tuple[Point, ...]:
        """The points without a score, with their reasons."""
        return tuple(p for p in self.points if p.score is None)

    def pareto(self) -> tuple[Point, ...]:
        """The points that no other beats: none is as small and better, or as good and smaller. By size."""
        return pareto(self.points)

    def best(self, *, ratio: float | None = None) -> Point:
        """The highest score, of networks of at most `ratio` times the last model's size; the smallest of equals."""
        fitting = [p for p in self.pareto() if ratio is None or (p.ratio is not None and p.ratio <= ratio)]
        if not fitting:
            sizes = ", ".join(f"{p.ratio:.2f}" for p in self.pareto()[:1])
            raise OptionError(f"no network was measured within ratio={ratio}; the smallest has {sizes or 'no score'}")
        return max(fitting, key=lambda p: p.score if p.score is not None else float("-inf"))

    def rows(self) -> list[dict[str, Any]]:
        """One flat dictionary for each point: pandas.DataFrame(frontier.rows()) is a table of it."""
        front = set(map(id, self.pareto()))
        return [self._row(p, id(p) in front) for p in self.points]

    def _row(self, point: Point, on_front: bool) -> dict[str, Any]:
        return {
            "kind": point.kind,
            "method": point.method,
            "alpha": point.alpha,
            "budget": point.budget,
            **{f"mix_{k}": share for k, share in enumerate(point.mix)},
            "score": point.score,
            "dense": point.dense,
            "effective": point.effective,
            "ratio": point.ratio,
            "flops": point.flops,
            **{f"latency_{form}": None if point.latency is None else point.latency[form] for form in FORMS},
            "slower": ",".join(slower_than_ensemble(point, self.points)) or None,
            "fused": point.fused if point.spaces else None,
            "isolated": point.isolated if point.spaces else None,
            "cost": point.cost,
            "converged": point.converged,
            "seconds": point.seconds,
            "pareto": on_front,
            "error": point.error,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: the rows, each with its mix and its spaces."""
        points = []
        for row, point in zip(self.rows(), self.points, strict=True):
            kept = {key: value for key, value in row.items() if not key.startswith("mix_")}
            spaces = [_space(s) for s in point.spaces]
            points.append({**kept, "mix": list(point.mix), "features": point.features, "spaces": spaces})
        described = {"metric": self.metric, "samples": self.samples, "names": list(self.names)}
        described |= {"size": self.size, "complete": self.complete}
        return {**described, "points": points}

    def table(self) -> str:
        """The points as text; those on the front have a mark, those that failed their reason below."""
        front = set(map(id, self.pareto()))
        columns = self._columns()
        rows = [(*(show(p) for _, _, show in columns), "*" if id(p) in front else "") for p in self.points]
        lines = [table((*(name for name, _, _ in columns), "front"), rows, align="".join(a for _, a, _ in columns))]
        lines += [self._notes()]
        lines += [f"{p.method}{_at(p)}: {p.error}" for p in self.failed]
        lines += [] if self.complete else ["interrupted: not every network was measured"]
        return "\n".join(lines)

    def _columns(self) -> list[Column]:
        """What tables show of a point: heading, alignment, text."""
        single = self._single()

        def size(name: str) -> list[Column]:
            def count(p: Point) -> str:
                return "" if getattr(p, name) is None else f"{getattr(p, name):,}"

            def ratio(p: Point) -> str:
                return "" if getattr(p, name) is None or not single else f"{getattr(p, name) / single:.2f}"

            return [(COLUMN[name], ">", count), ("ratio", ">", ratio)]  # type: ignore[index]

        def time(form: str) -> Column:
            name = "latency" if form == "dense" else form
            return name, ">", lambda p: "" if p.latency is None else f"{p.latency[form]:.2f}{self._mark(p, form)}"

        budgets = any(p.budget is not None for p in self.points)
        timed = any(p.latency is not None for p in self.points)
        return [
            ("network", "<", lambda p: p.method),
            ("alpha", ">", lambda p: "" if p.alpha is None else f"{p.alpha:g}"),
            *([("budget", ">", lambda p: p.budget or "")] if budgets else []),
            ("mix", "<", lambda p: "" if p.kind == "parent" else mix_text(p.mix)),
            (self.metric, ">", lambda p: "failed" if p.score is None else f"{p.score:.4f}"),
            *size("dense"),
            *size("effective"),
            *([time(form) for form in FORMS] if timed else []),
            ("seconds", ">", lambda p: f"{p.seconds:.1f}" if p.kind == "fused" else ""),
        ]

    def _mark(self, point: Point, form: str) -> str:
        return "!" if form in slower_than_ensemble(point, self.points) else ""

    def _single(self) -> int | None:
        """Parameters of the last model."""
        return next((p.dense for p in reversed(self.points) if p.kind == "parent"), None)

    def _notes(self) -> str:
        """What the columns are."""
        scored = "" if self.samples is None else f"{self.metric} on {self.samples:,} samples; "
        notes = [
            f"{scored}ratio: relative to {self.names[-1]}; as blocks: without the zero blocks, what pf.to_blocks and "
            "pf.save hold (effective parameters)"
        ]
        if any(p.latency is not None for p in self.points):
            notes.append(
                f"latency: time of a call relative to {self.names[-1]}: the module, as blocks, and blocks where faster "
                "(auto); convolutions in the memory layout that is faster here"
            )
        if any(slower_than_ensemble(p, self.points) for p in self.points):
            notes.append("!: slower than the ensemble, the models one by one")
        better = "no other network is as small and better, or as good and smaller"
        notes.append(f"front (*): {better}, by {'parameters' if self.size == 'dense' else 'parameters as blocks'}")
        return "\n".join(notes)

    def to_csv(self, path: StrPath) -> Path:
        """Write the rows as CSV; the file is written whole or not at all."""
        rows = self.rows()
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
        return _written(path, text.getvalue())

    def to_json(self, path: StrPath) -> Path:
        """Write everything as JSON; the file is written whole or not at all."""
        return _written(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    def to_html(self, *, title: str = "Fusion frontier") -> str:
        """An interactive page, in one piece: nothing is loaded from anywhere."""
        from .html import frontier_page
        from .page import content

        return frontier_page(content(self, title))

    def save_html(self, path: StrPath, *, title: str = "Fusion frontier") -> Path:
        """Write the interactive page as one file that opens offline."""
        return _written(path, self.to_html(title=title))

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """The table, for notebooks; `save_html` writes the interactive page."""
        columns = self._columns()
        front = set(map(id, self.pareto()))
        lines = ["<table>", "<tr>", *(f"<th>{html.escape(name)}</th>" for name, _, _ in columns), "</tr>"]
        for point in self.points:
            style = ' style="font-weight:bold"' if id(point) in front else ""
            title = f' title="{html.escape(point.error)}"' if point.error else ""
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in (show(point) for _, _, show in columns))
            lines.append(f"<tr{style}{title}>{cells}</tr>")
        return "".join([*lines, "</table>"])


def _at(point: Point) -> str:
    alpha = "" if point.alpha is None else f" at alpha {point.alpha:g},"
    alpha += "" if point.budget is None else f" at budget {point.budget},"
    return f"{alpha} mix {mix_text(point.mix)}"


def _space(space: SpacePoint) -> dict[str, Any]:
    found = space.similarity
    parts = {"pair_costs": found.costs, "similarity_fused": found.fused, "similarity_isolated": found.isolated}
    return asdict(space.summary) | {name: [round(float(v), 6) for v in found] for name, found in parts.items()}


def _written(path: StrPath, text: str) -> Path:
    path = check_target(path)
    with replacing(path) as file:
        file.write(text.encode())
    return path
