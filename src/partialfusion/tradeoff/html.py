"""Interactive pages, each one file that opens offline: style, script and data are in it, nothing is loaded."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

HEADINGS = {
    "dense": "Parameters",
    "effective": "As blocks",
    "flops": "FLOPs",
    "latency-dense": "Latency",
    "latency-blocks": "Latency, blocks",
    "latency-auto": "Latency, auto",
}  # of the columns of sizes
SCRIPTS = ("format.js", "chart.js", "details.js", "main.js")  # in the order in which they need each other


def frontier_page(content: Mapping[str, Any]) -> str:
    """The page of a frontier: a chart, controls, what became of the channels, and a table that needs no script.

    Args:
        content: plain values that JSON can hold. `title`, `metric`, `percent` (scores are fractions), `samples` (that
            every network was scored on), `complete`; `axes` (sizes that the chart can show, each `key`, `name`,
            `single` and `counts`) and `axis` (the key of the one that `pareto` goes by); `models` (names); `mixes`
            (each `text` and `shares`); `points` (each `kind`, `method`, `alpha`, `budget`, `mix` (a number of a mix),
            `score`, `dense`, `effective`, `flops`, `latency`, `slower` (the forms in which it is slower than the
            ensemble), `sizes` (by the keys of the axes), `seconds`, `features`, `converged`, `pareto`, `error`,
            `detail` (a number of a detail)); `details` (each `all` and `spaces`, with counts of channels and of
            histograms); `bins` (ends of the histograms: `costs` by method and space, "" for all, and `similarity`).
    """
    parts = {
        "title": html.escape(content["title"]),
        "lead": lead(content),
        "notice": notice(content),
        "table": table(content),
        "style": asset("page.css"),
        "script": "\n".join(asset(name) for name in SCRIPTS),
        "data": embedded(content),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], asset("page.html"))


def asset(name: str) -> str:
    """A file of the page."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def embedded(content: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def lead(content: Mapping[str, Any]) -> str:
    """What is shown: how many networks, made of which, scored on how many samples."""
    fused = [p for p in content["points"] if p["kind"] == "fused" and p["score"] is not None]
    models = [html.escape(name) for name in content["models"]]
    source = "one pair of networks" if len(models) == 2 else f"one set of {len(models)} networks"
    said = f"{len(fused)} networks fused from {source}, {', '.join(models[:-1])} and {models[-1]}"
    if content["samples"] is None:
        return f"{said}: {html.escape(content['metric'])} against size."
    said += f"; {html.escape(content['metric'])} on {content['samples']:,} samples"
    return f"{said}{_spread(content)}."


def _spread(content: Mapping[str, Any]) -> str:
    """The standard error of a fraction of the samples, at the best score."""
    best = max((p["score"] for p in content["points"] if p["score"] is not None), default=None)
    if not content["percent"] or best is None:
        return ""
    error = 100 * math.sqrt(best * (1 - best) / content["samples"])
    return f", with a standard error of {error:.1f} points at the best score"


def notice(content: Mapping[str, Any]) -> str:
    """What the reader must know: an interrupted measuring, networks that failed."""
    said = [] if content["complete"] else ["<p>Measuring was interrupted: not every network is here.</p>"]
    failed = [p for p in content["points"] if p["error"]]
    if failed:
        lines = "".join(f"<li><b>{called(p, content)}</b>: {html.escape(p['error'])}</li>" for p in failed)
        said.append(f"<details><summary>{len(failed)} could not be measured</summary><ul>{lines}</ul></details>")
    return f'<div class="notice" role="note">{"".join(said)}</div>' if said else ""


def called(point: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """A point in words."""
    parts = [point["method"]]
    parts += [] if point["alpha"] is None else [f"alpha {point['alpha']:g}"]
    parts += [] if point["budget"] is None else [f"budget {point['budget']}"]
    parts += [] if point["mix"] is None else [f"mix {content['mixes'][point['mix']]['text']}"]
    return html.escape(", ".join(parts))


def table(content: Mapping[str, Any]) -> str:
    """All points; those on the front are marked. Cells have the number that they are sorted by."""
    sizes = [HEADINGS[axis["key"]] for axis in content["axes"]]
    columns = ("Network", content["metric"].capitalize(), *sizes, "Alpha", "Mix", "Seconds", "On the front")
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
    rows = "".join(_row(number, point, content) for number, point in enumerate(content["points"]))
    caption = ""
    if any(p["slower"] for p in content["points"]):
        caption = "<caption>! slower than the ensemble, the networks one by one</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(number: int, point: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    score, mix, alpha = point["score"], point["mix"], point["alpha"]
    shares = None if mix is None else content["mixes"][mix]
    cells: list[tuple[str, float | None]] = [
        ("failed" if score is None else shown(score, percent=content["percent"]), score),
        *(_size(point, axis) for axis in content["axes"]),
        (f"budget {point['budget']}" if point["budget"] else "" if alpha is None else f"{alpha:g}", alpha),
        ("", None) if shares is None else (shares["text"], shares["shares"][0]),
        (f"{point['seconds']:.1f}", point["seconds"]) if point["kind"] == "fused" else ("", None),
        ("yes", 1) if point["pareto"] else ("", None),
    ]
    marked = ' class="front"' if point["pareto"] else ""
    columns = "".join(
        f'<td data-value="{"" if value is None else value}">{html.escape(cell)}</td>' for cell, value in cells
    )
    name = html.escape(point["method"])
    return f'<tr data-point="{number}"{marked}><th scope="row" data-value="{name}">{name}</th>{columns}</tr>'


def _size(point: Mapping[str, Any], axis: Mapping[str, Any]) -> tuple[str, float | None]:
    """A size of a point, with a mark where it is slower than the ensemble."""
    text, value = sized(point["sizes"][axis["key"]], axis)
    slower = axis["key"] in {f"latency-{form}" for form in point["slower"]}
    return f"{text} !" if slower else text, value


def sized(value: float | None, axis: Mapping[str, Any]) -> tuple[str, float | None]:
    """A size as a count and relative to one model, or as that ratio alone."""
    if value is None:
        return "", None
    ratio = f"{value / axis['single']:.2f}×"
    return (f"{value:,} ({ratio})" if axis["counts"] else ratio), value


def shown(score: float, *, percent: bool) -> str:
    """A score as the page writes it."""
    return f"{100 * score:.2f} %" if percent else f"{score:.4g}".replace("-", "−")
