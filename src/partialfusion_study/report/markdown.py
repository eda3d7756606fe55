"""Tables, chapters and the index as GitHub Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from html import escape

from .document import INDEX, Chapter, Entry, Figure, Item, Table, Value
from .verdict import Verdict, tally

NOTHING = "–"
CLAIMS, ANCHOR = "The paper's claims", "the-papers-claims"
VERDICT_HEADS = ("Claim", "Verdict", "Figures"), ("---", "---", "---")
NO_CLAIM = "No claim of the paper is judged by these figures."
UNBROKEN = "\u00a0"
INLINE_MOST = 2  # columns with numbers of the paper up to which these are printed in the same cells


def mean(value: Value) -> str:
    """The measured number: 87.40 ± 0.31."""
    shown = _number(value.mean, value.digits)
    if value.std is None or value.count == 1:
        return shown
    return f"{shown} ± {_number(value.std, value.digits)}"


def paper(value: Value) -> str:
    """The paper's number with the digits that it is printed with there."""
    return NOTHING if value.paper is None else f"{Decimal(value.paper):,f}"


def difference(value: Value) -> str:
    """The measured number minus the paper's, both as they are printed, with the digits of the more precise one."""
    if value.paper is None:
        return NOTHING
    shown = f"{Decimal(f'{value.mean:.{value.digits}f}') - Decimal(value.paper):+,f}"
    return shown if re.search(r"[1-9]", shown) else shown[1:]


def inline(value: Value) -> str:
    """Both numbers and the difference in one cell: 87.40 ± 0.31 (paper 86.9, +0.50)."""
    shown = mean(value)
    return shown if value.paper is None else f"{shown} (paper {paper(value)}, {difference(value)})"


def table(content: Table) -> str:
    """The table; where many columns have numbers of the paper, these and the differences are on lines of their own."""
    if not _is_stacked(content):
        rows = [[_cell(c) for c in row] for row in content.rows]
    else:
        if _is_numeric(content)[0]:  # there is no column of text yet that could label the lines
            content = replace(content, columns=("", *content.columns), rows=tuple(("", *row) for row in content.rows))
        at = _is_numeric(content).index(True) - 1
        rows = [line for row in content.rows for line in _stacked(row, at)]
    marks = ["---:" if right else "---" for right in _is_numeric(content)]
    return "\n".join(_row(cells) for cells in ([_cell(c) for c in content.columns], marks, *rows))


def _stacked(row: Sequence[Item], at: int) -> list[list[str]]:
    """Our numbers, then the paper's and the differences, labelled in column `at`; with non-breaking spaces."""
    lines = [[mean(c).replace(" ", UNBROKEN) if isinstance(c, Value) else _cell(c) for c in row]]
    if any(_has_paper(c) for c in row):
        for name, show in (("paper", paper), ("difference", difference)):
            cells = [show(c) if isinstance(c, Value) else "" for c in row]
            cells[at] = f"*{name}*"
            lines.append(cells)
    return lines


def _is_stacked(content: Table) -> bool:
    return sum(any(map(_has_paper, column)) for column in _columns(content)) > INLINE_MOST


def _is_numeric(content: Table) -> list[bool]:
    return [any(isinstance(c, Value) for c in column) for column in _columns(content)]


def _columns(content: Table) -> list[list[Item]]:
    return [[row[k] for row in content.rows] for k in range(len(content.columns))]


def _has_paper(item: Item) -> bool:
    return isinstance(item, Value) and item.paper is not None


def legend(content: Table) -> str:
    """Sentences that explain the numbers of a table; empty where nothing needs explanation."""
    values = [c for row in content.rows for c in row if isinstance(c, Value)]
    counts = sorted({v.count for v in values if v.std is not None and v.count > 1})
    sentences = []
    if counts:
        many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        sentences.append(f"Mean ± standard deviation over {many} {content.over}.")
    if _is_stacked(content):
        sentences.append("The lines below our numbers give the paper's and the differences (ours minus the paper's).")
    elif any(map(_has_paper, values)):
        sentences.append("The paper's numbers and the differences (ours minus the paper's) are in brackets.")
    return " ".join(sentences)


def chapter(content: Chapter) -> str:
    """The page: title, its place in the paper, the text, each part with its note, and the verdicts."""
    blocks = [f"# {_one_line(content.title)}", f"{_references(content.references)}[All results]({INDEX}.md)"]
    blocks.append(content.text.strip())
    for part in content.parts:
        blocks.append(f"## {_one_line(part.title)}")
        if isinstance(part, Table):
            small = f"{legend(part)} {part.measured}".strip()
            blocks.append(table(part))
        else:
            small = part.measured
            blocks.append(f"![{_alt(part)}]({picture_name(content, part)})")
        blocks += [f"*{small}*" if small else "", part.note.strip()]
    blocks += [f"## {CLAIMS}", verdicts(content.verdicts)]
    return _page(blocks)


def verdicts(found: Sequence[Verdict]) -> str:
    """The claims of the paper, each with its verdict and the figures."""
    if not found:
        return NO_CLAIM
    lines = [(_cell(v.claim), _outcome(v, "**"), _cell(v.figures)) for v in found]
    return "\n".join(_row(line) for line in (*VERDICT_HEADS, *lines))


def _outcome(verdict: Verdict, mark: str = "") -> str:
    """The outcome, and for which of the paper's cases: "reproduced where measured (α 0.4; not tested: 0.2)"."""
    shown = f"{mark}{verdict.outcome}{mark}"
    return f"{shown} where measured ({_cell(verdict.scope)})" if verdict.scope else shown


def picture_name(content: Chapter, figure: Figure) -> str:
    """The file of a figure, beside the chapter's page."""
    return f"{content.name}-{figure.name}.png"


def index(entries: Iterable[Entry], *, title: str = "Results", text: str = "") -> str:
    """The page that lists the chapters."""
    entries = tuple(entries)
    lines = [("Experiment", "In the paper", "Finding", "Claims"), ("---", "---", "---", "---")]
    for entry in entries:
        where = ", ".join(entry.references) or NOTHING
        cells = where, _cell(entry.finding), tally(entry.verdicts) or NOTHING
        lines.append((f"[{_cell(entry.title)}]({entry.name}.md)", *cells))
    blocks = [f"# {_one_line(title)}", text.strip(), "\n".join(_row(line) for line in lines)]
    judged = [(entry, verdict) for entry in entries for verdict in entry.verdicts]
    if judged:
        rows = [(_cell(v.claim), _outcome(v), f"[{_cell(e.title)}]({e.name}.md#{ANCHOR})") for e, v in judged]
        blocks += [f"## {CLAIMS}", "\n".join(_row(row) for row in (*VERDICT_HEADS, *rows))]
    return _page(blocks)


def _page(blocks: Iterable[str]) -> str:
    """Blocks as a page, with a true minus sign before negative numbers and a space before every percent sign."""
    text = "\n\n".join(block for block in blocks if block) + "\n"
    return re.sub(r"(?<=\d)%", " %", re.sub(r"(?<![\w.)\]-])-(?=\d)|(?<=\de)-(?=\d)", "−", text))


def _references(references: Sequence[str]) -> str:
    return f"In the paper: {', '.join(references)} · " if references else ""


def _alt(figure: Figure) -> str:
    """The alternative text of a picture: its title and its panels."""
    panels = "; ".join(p.title for p in figure.panels if p.title)
    text = f"{figure.title}: {panels}" if panels and panels != figure.title else figure.title
    return re.sub(r"([\[\]\\])", r"\\\1", _one_line(text))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(item: Item) -> str:
    if item is None:
        return NOTHING
    if isinstance(item, Value):
        return inline(item)
    text = re.sub(r"(?<!\\)\|", r"\\|", escape(item.strip(), quote=False))
    return re.sub(r"\s*\n\s*", "<br>", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _number(number: float, digits: int) -> str:
    shown = f"{number:,.{digits}f}"
    return shown if re.search(r"[1-9a-z]", shown) else shown.lstrip("-")
