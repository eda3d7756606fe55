"""Interactive pages, each one file that opens offline: style, script and data are in it, nothing is loaded."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

SCRIPTS = ("format.js", "chart.js", "details.js", "main.js")  # in the order in which they need each other


def frontier_page(content: Mapping[str, Any]) -> str:
    """The page of a frontier: a chart, controls, what became of the channels, and a table that needs no script.

    Args:
        content: plain values that JSON can hold. `title`, `metric`, `percent` (scores are fractions), `size` (what
            `parameters` are), `complete`; `models` (names); `mixes` (each `text` and `shares`); `points` (each `kind`,
            `method`, `alpha`, `mix` (a number of a mix), `score`, `dense`, `effective`, `parameters`, `ratio`,
            `seconds`, `features`, `converged`, `pareto`, `error`, `detail` (a number of a detail)); `details` (each
            `all` and `spaces`, with counts of channels and of histograms); `bins` (ends of the histograms: `costs` by
            method and space, "" for all, and `similarity`).
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
    """One sentence that says what is shown."""
    fused = [p for p in content["points"] if p["kind"] == "fused" and p["score"] is not None]
    models = [html.escape(name) for name in content["models"]]
    named = f"{', '.join(models[:-1])} and {models[-1]}"
    return f"{len(fused)} networks fused from {named}: {html.escape(content['metric'])} against {content['size']}, " + (
        "those of the module." if content["size"] == "parameters" else "those outside zero blocks."
    )


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
    parts += [] if point["mix"] is None else [f"mix {content['mixes'][point['mix']]['text']}"]
    return html.escape(", ".join(parts))


def table(content: Mapping[str, Any]) -> str:
    """All points; those on the front are marked."""
    metric = content["metric"].capitalize()
    columns = ("Network", metric, "Ratio", "Alpha", "Mix", "Parameters", "Seconds", "On the front")
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
    rows = "".join(_row(number, point, content) for number, point in enumerate(content["points"]))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(number: int, point: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    cells: Sequence[str] = (
        "failed" if point["score"] is None else shown(point["score"], percent=content["percent"]),
        "" if point["ratio"] is None else f"{point['ratio']:.2f}×",
        "" if point["alpha"] is None else f"{point['alpha']:g}",
        "" if point["mix"] is None else content["mixes"][point["mix"]]["text"],
        "" if point["parameters"] is None else f"{point['parameters']:,}",
        f"{point['seconds']:.1f}" if point["kind"] == "fused" else "",
        "yes" if point["pareto"] else "",
    )
    marked = ' class="front"' if point["pareto"] else ""
    columns = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr data-point="{number}"{marked}><th scope="row">{html.escape(point["method"])}</th>{columns}</tr>'


def shown(score: float, *, percent: bool) -> str:
    """A score as the page writes it."""
    return f"{100 * score:.2f} %" if percent else f"{score:.4g}".replace("-", "−")
