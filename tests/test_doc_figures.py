"""Figures that README and pages quote from the pages of results are those of the pages, rounded.

A row quotes a page if its first cell links to it, or if the first cell of the table's header does. A row whose first
cell is empty belongs to the row above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(((?:docs/)?results/[\w-]+\.md)(?:#[\w-]*)?\)")
NUMBER = re.compile(r"\d+\.\d+")


def quoted(page: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """The rows of a page's tables that quote a page of results, that page, and the figures of the row."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for in_table, table in groupby(lines, lambda line: line.lstrip().startswith("|")):
        if not in_table:
            continue
        header, _, *rows = table
        everywhere = LINK.findall(first_cell(header))
        links: list[str] = []
        for row in rows:
            if first_cell(row):
                links = LINK.findall(first_cell(row)) or everywhere
            for link in links:
                yield row, page.parent / link, NUMBER.findall(row.replace(first_cell(row), "", 1))


def first_cell(row: str) -> str:
    return row.split("|")[1].strip()


@cache
def figures(page: Path) -> frozenset[Decimal]:
    return frozenset(map(Decimal, NUMBER.findall(page.read_text(encoding="utf-8").replace(",", ""))))


def known(figure: str, page: Path) -> bool:
    digits = Decimal(1).scaleb(-len(figure.partition(".")[2]))
    return any(found.quantize(digits, ROUND_HALF_UP) == Decimal(figure) for found in figures(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quoted_figures_are_those_of_the_results(page: Path) -> None:
    wrong = [(row, figure) for row, source, found in quoted(page) for figure in found if not known(figure, source)]
    assert not wrong, "\n".join(f"{figure} is not on the linked page: {row}" for row, figure in wrong)


def test_what_refitting_closes_of_the_gap_follows_from_the_results() -> None:
    """The percentages on the page on choosing: of the gap from partial OT to the ensemble, at every alpha below 1."""
    page = ROOT / "docs" / "choosing.md"
    text = page.read_text(encoding="utf-8").partition("Fraction of the gap")[2].partition("(Computed")[0]
    header, _, *rows = (line for line in text.splitlines() if line.startswith("|"))
    alphas = [float(alpha) for alpha in header.split("|")[2:-1]]
    assert len(rows) == 4
    for row in rows:
        (link,) = LINK.findall(row)
        plain, refitted = (
            equal_shares(page.parent / link, label) for label in ("partial OT fusion", "partial OT, refitted")
        )
        closed = [(refitted[a] - plain[a]) / (plain[1.0] - plain[a]) for a in alphas]
        assert [f"{part:.0%}".replace("%", " %") for part in closed] == [
            cell.strip() for cell in row.split("|")[2:-1]
        ], row


def equal_shares(page: Path, label: str) -> dict[float, float]:
    """alpha → the mean accuracy at equal shares, in the row of a page that begins with a label."""
    text = page.read_text(encoding="utf-8").partition("## Accuracy (%) at equal shares")[2]
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    row = next(cells for cells in lines if first_cell(f"|{cells[0]}|").startswith(label))
    alphas = (float(cell.rpartition("=")[2]) for cell in lines[0][1:])
    return {alpha: float(cell.split("±")[0]) for alpha, cell in zip(alphas, row[1:], strict=True)}


def test_the_figures_of_the_first_pages_are_quoted() -> None:
    """The test above looks at something: the README's table, and most tables of the page on choosing."""
    count = {page.stem: sum(len(found) for *_, found in quoted(page)) for page in PAGES}
    assert count["README"] >= 8
    assert count["choosing"] > 100


def test_a_figure_that_is_not_on_the_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.md").write_text("| partial OT | 68.46 ± 1.25 |\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "| | x |\n| --- | --- |\n| [A](results/a.md) | 68.5 |\n| | 68.47 |\n| other | 3.14 |\n", encoding="utf-8"
    )
    found = [(figure, known(figure, source)) for _, source, row in quoted(page) for figure in row]
    assert found == [("68.5", True), ("68.47", False)]
