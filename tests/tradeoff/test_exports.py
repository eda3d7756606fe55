"""A frontier as rows, text, files and plain values."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

import partialfusion as pf


def test_rows_are_flat_and_all_alike(two: pf.Frontier) -> None:
    rows = two.rows()
    assert len(rows) == len(two.points)
    assert len({tuple(row) for row in rows}) == 1
    assert all(isinstance(v, (str, int, float, bool, type(None))) for row in rows for v in row.values())
    front = two.pareto()
    for row, point in zip(rows, two.points, strict=True):
        assert (row["score"], row["effective"], row["mix_0"], row["mix_1"]) == (
            point.score,
            point.effective,
            *point.mix,
        )
        assert row["pareto"] == any(point is p for p in front)


def test_files_hold_the_rows(two: pf.Frontier, tmp_path: Path) -> None:
    with open(two.to_csv(tmp_path / "f.csv"), newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [r["method"] for r in read] == [p.method for p in two.points]
    assert [float(r["score"]) if r["score"] else None for r in read] == [p.score for p in two.points]
    record = json.loads(two.to_json(tmp_path / "f.json").read_text())
    assert record == json.loads(json.dumps(two.to_dict()))
    assert record["names"] == ["model A", "model B"]
    for entry, point in zip(record["points"], two.points, strict=True):
        assert (entry["score"], entry["mix"]) == (point.score, list(point.mix))
        assert [s["fused"] for s in entry["spaces"]] == [s.summary.fused for s in point.spaces]
        assert [len(s["pair_costs"]) for s in entry["spaces"]] == [s.similarity.costs.size for s in point.spaces]
    assert {p.name for p in tmp_path.iterdir()} == {"f.csv", "f.json"}


def test_what_cannot_be_written_is_one_error(two: pf.Frontier, tmp_path: Path) -> None:
    for write in (two.to_csv, two.to_json, two.save_html):
        with pytest.raises(pf.FusionError, match="cannot be written"):
            write(tmp_path / "nowhere" / "f")
        with pytest.raises(pf.FusionError, match="is no path of a file"):
            write(5)
    assert not list(tmp_path.iterdir())


def test_the_table_names_every_network(two: pf.Frontier) -> None:
    lines = str(two).splitlines()
    assert lines[0].split()[:4] == ["network", "alpha", "mix", "accuracy"]
    assert len(lines) == 2 + len(two.points) + 2 + len(two.failed)
    assert lines[2 + len(two.points)].startswith("accuracy on 12 samples; ratio: relative to model B")
    assert sum(line.endswith("*") for line in lines) == len(two.pareto())
    fused = next(p for p in two.points if p.kind == "fused" and p.alpha == 0.4)
    (line,) = [line for line in lines if f"{fused.method} " in line and "0.4  0.25 : 0.75" in line]
    single = two.points[1].dense
    for size in (fused.dense, fused.effective):
        assert f"{size:,}" in line
        assert f"{size / single:.2f}" in line, "both sizes, and both relative to one model"
    assert repr(two) == str(two)


class Cells(HTMLParser):
    """Counts tags, and gathers the text of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_notebooks_show_the_table(two: pf.Frontier) -> None:
    found = Cells()
    found.feed(two._repr_html_())
    assert len(found.rows) == 1 + len(two.points)
    assert [row[0] for row in found.rows[1:]] == [p.method for p in two.points]
    assert {len(row) for row in found.rows} == {9}


def test_nothing_in_the_data_ends_the_script(two: pf.Frontier) -> None:
    page = two.to_html(title="</script><script>alert(1)</script> & {{data}} {{style}}")
    start = page.index('id="data">') + len('id="data">')
    record = json.loads(page[start : page.index("</script>", start)])
    assert record["title"] == "</script><script>alert(1)</script> & {{data}} {{style}}"
    assert "ends </script><b>" in {p["method"] for p in record["points"]}
    assert page.count("<script") == page.count("</script>") == 2
    assert "alert(1)</script>" not in page
    for word in ("http:", "https:", "//cdn", "@import", "url("):
        assert word not in page.replace("http://www.w3.org/2000/svg", "")


def test_histograms_count_every_pair(two: pf.Frontier) -> None:
    page = two.to_html()
    start = page.index('id="data">') + len('id="data">')
    record = json.loads(page[start : page.index("</script>", start)])
    for entry, point in zip(record["points"], two.points, strict=True):
        if entry["detail"] is None:
            assert not point.spaces
            continue
        detail = record["details"][entry["detail"]]
        free = [s for s in point.spaces if s.summary.kind != "rigid"]
        for part, values in (("costs", "costs"), ("alike", "fused"), ("apart", "isolated")):
            sizes = [getattr(s.similarity, values).size for s in free]
            assert [sum(s[part]) for s in detail["spaces"]] == sizes
            assert sum(detail["all"][part]) == sum(sizes)
        assert [s["after"] for s in detail["spaces"]] == [s.summary.after for s in free]
    assert len(record["details"]) < len([p for p in two.points if p.spaces]), "mixes share their details"
