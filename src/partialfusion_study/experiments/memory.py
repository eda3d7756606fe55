"""Working memory of fused networks: parameters and activations."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..cells import Memory
from ..report import Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .runs import measured
from .settings import Scale

FORMS = {"ensemble": "ensemble", "dense": "fused, dense form", "blocks": "fused, block form"}
KINDS = {
    "parameters": "parameters",
    "peak": "activations alive at one time, without gradients",
    "kept": "activations kept for the backward pass",
}
WIDTHS = (100, 1000, 3000)


def counted(scale: Scale) -> list[Memory]:
    return [Memory(width) for width in ((32,) if scale == "quick" else WIDTHS)]


def cells(scale: Scale) -> list[Cell]:
    return list(counted(scale))


def ratio(results: Results, cell: Memory, form: str, kind: str) -> float:
    found = results(cell)
    return float(found[form][kind] / found["single"][kind])


def report(scale: Scale, results: Results) -> Report:
    tables = []
    for kind, words in KINDS.items():

        def table(results: Results, kind: str = kind, words: str = words) -> Table:
            rows: list[Row] = []
            for cell in counted(scale):
                single = results(cell)["single"][kind] / 2**20
                values = (Value.of([ratio(results, cell, form, kind)]) for form in FORMS)
                rows.append((f"{cell.width:,}", Value.of([single]), *values))
            columns = ("width", "single network (MB)", *FORMS.values())
            return Table(kind, f"{words.capitalize()}, relative to one network", columns, tuple(rows))

        tables.append(measured(results, table))
    last = counted(scale)[-1]
    finding = (
        f"At width {last.width:,} the block form has {ratio(results, last, 'blocks', 'parameters'):.2f} times the "
        f"parameters of one network, and {ratio(results, last, 'blocks', 'peak'):.2f} times its activations."
    )
    text = (
        "MLPs with three hidden layers, alpha = 0.5, batches of 64. Bytes are counted while the networks run, and are "
        "the same on every machine. The ensemble calls its networks one after the other."
    )
    return Report(finding, text, tuple(tables))


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    last = counted(scale)[-1]
    parameters, peak, kept = (ratio(results, last, "blocks", kind) for kind in KINDS)
    sequential = ratio(results, last, "ensemble", "peak")
    return [
        Verdict.of(
            "At α = 0.5 activations take 1.5 times the memory of one network.",
            [abs(found - 1.5) < 0.05 for found in (peak, kept)],
            f"width {last.width}: {peak:.2f} times at one time, {kept:.2f} times for the backward pass",
            cases="counts",
        ),
        Verdict.of(
            "In block form parameters take 1.75 times the memory of one network.",
            [abs(parameters - 1.75) < 0.05],
            f"width {last.width}: {parameters:.2f} times, with input and output layers that widen on one side only",
        ),
        Verdict.of(
            "Ensembles can be evaluated one network after the other, without twice the memory for activations.",
            [sequential < 1.1],
            f"{sequential:.2f} times",
        ),
        Verdict.untested(
            "Storage relates practically one-to-one to the number of effective parameters.",
            "no file is measured in the experiments; a test of the library compares the sizes of stored files",
        ),
    ]


EXPERIMENT = Experiment("memory", "Working memory of fused networks", ("Appendix I",), "none", cells, report, claims)
