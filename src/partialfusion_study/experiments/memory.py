"""Memory of fused networks: their parameters and activations, and their files."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..cells import Memory, Stored
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


def files(scale: Scale) -> list[Stored]:
    return [Stored(cell.width) for cell in counted(scale)]


def cells(scale: Scale) -> list[Cell]:
    return [*counted(scale), *files(scale)]


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
    tables.append(measured(results, lambda r: _files(scale, r)))
    last = counted(scale)[-1]
    finding = (
        f"At width {last.width:,} the block form has {ratio(results, last, 'blocks', 'parameters'):.2f} times the "
        f"parameters of one network, and {ratio(results, last, 'blocks', 'peak'):.2f} times its activations."
    )
    text = (
        "MLPs with three hidden layers, alpha = 0.5, batches of 64. Bytes are counted while the networks run, and are "
        "the same on every machine. The ensemble calls its networks one after the other. Files are written by "
        "`pf.save`, beside a safetensors file of one network."
    )
    return Report(finding, text, tuple(tables))


def _files(scale: Scale, results: Results) -> Table:
    rows: list[Row] = []
    for cell in files(scale):
        found = results(cell)
        values = (
            found["single"] / 2**20,
            found["fused"] / found["single"],
            found["effective"] / found["parameters"],
            found["dense"] / found["parameters"],
        )
        rows.append((f"{cell.width:,}", *(Value.of([value]) for value in values)))
    columns = ("width", "file of one network (MB)", "file of the fusion", "effective parameters", "dense parameters")
    return Table("files", "Files and parameters, relative to one network", columns, tuple(rows))


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    last = counted(scale)[-1]
    parameters, peak, kept = (ratio(results, last, "blocks", kind) for kind in KINDS)
    sequential = ratio(results, last, "ensemble", "peak")
    stored = {
        cell.width: (found["fused"] / found["single"]) / (found["effective"] / found["parameters"])
        for cell in files(scale)
        for found in [results(cell)]
    }
    return [
        Verdict.of(
            "At α = 0.5 activations take 1.5 times the memory of one network.",
            [abs(found - 1.5) < 0.05 for found in (peak, kept)],
            f"width {last.width:,}: {peak:.2f} times at one time, {kept:.2f} times for the backward pass",
            cases="counts",
        ),
        Verdict.of(
            "In block form parameters take 1.75 times the memory of one network.",
            [abs(parameters - 1.75) < 0.05],
            f"width {last.width:,}: {parameters:.2f} times, with input and output layers that widen on one side only",
        ),
        Verdict.of(
            "Ensembles can be evaluated one network after the other, without twice the memory for activations.",
            [sequential < 1.1],
            f"{sequential:.2f} times",
        ),
        Verdict.of(
            "Storage relates practically one-to-one to the number of effective parameters (within five percent).",
            [abs(ratio - 1) < 0.05 for ratio in stored.values()],
            "size of the file relative to one network's, over effective parameters relative to one network's: "
            + ", ".join(f"{ratio:.3f} (width {width:,})" for width, ratio in stored.items()),
            cases="widths",
        ),
    ]


EXPERIMENT = Experiment("memory", "Memory and files of fused networks", ("Appendix I",), "none", cells, report, claims)
