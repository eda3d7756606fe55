"""What stands in a result stays text on a page."""

from __future__ import annotations

from pathlib import Path

from partialfusion_study.cell import Record, config, key, kind
from partialfusion_study.experiments import EXPERIMENTS
from partialfusion_study.report import markdown
from partialfusion_study.report.document import Table
from partialfusion_study.store import Store
from partialfusion_study.study import _provenance


def test_cells_of_a_table() -> None:
    text = markdown.table(Table("name", "title", ("<b>a</b>",), (("<script>alert(1)</script>\nand | more",),)))
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;<br>and \\| more" in text


def test_machines(tmp_path: Path) -> None:
    store, experiment = Store(tmp_path), EXPERIMENTS["params_t"]
    for cell in dict.fromkeys(experiment.cells("quick")):
        machine = {"cpu": "<img src=x onerror=alert(1)>", "cores": 2, "torch": "2"}
        store.put(Record(kind(cell), key(cell), config(cell), {}, 1.0, machine, "now"))
    assert "<img" not in _provenance(experiment, "quick", store)
    assert "&lt;img src=x" in _provenance(experiment, "quick", store)
