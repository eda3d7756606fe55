"""Time of a forward pass, fused and not."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..cells import Clock
from ..report import Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .settings import Scale

PAPER = {
    100: (0.057, 2.08, 0.95, 2.45),
    500: (0.061, 2.11, 1.03, 2.50),
    3000: (0.231, 2.01, 2.03, 2.24),
    8000: (1.249, 2.02, 2.24, 1.69),
    12000: (2.854, 2.02, 1.96, 1.59),
    16000: (4.878, 2.00, 2.27, 1.81),
}


def clocks(scale: Scale) -> list[Clock]:
    if scale == "quick":
        return [Clock(32, seconds=0.2)]
    return [Clock(width, seconds=20.0) for width in PAPER if scale == "full" or width <= 8000]


def cells(scale: Scale) -> list[Cell]:
    return list(clocks(scale))


def report(scale: Scale, results: Results) -> Report:
    rows: list[Row] = []
    for clock in clocks(scale):
        found, paper = results(clock), PAPER.get(clock.width, (None,) * 4)
        names = ("milliseconds", "ensemble", "dense", "blocks")
        values = [Value.of([found[name]], paper=p) for name, p in zip(names, paper, strict=True)]
        rows.append((str(clock.width), *values, "2.25", "1.75"))
    columns = ("width", "single (ms)", "ensemble", "dense form", "block form", "FLOPs, dense form", "FLOPs, block form")
    text = (
        "MLPs with three hidden layers, alpha = 0.5, batches of 64. Times are medians of interleaved calls, relative "
        "to one network. The paper measured on an RTX A6000 GPU, we on the CPU named below. The paper's two largest "
        "widths, which need more memory, are left out except at the full scale."
    )
    last = results(clocks(scale)[-1])
    forms = {"blocks": "block form", "dense": "dense form", "ensemble": "ensemble"}
    ratios = ", ".join(f"{words} {last[name]:.2f}×" for name, words in forms.items())
    finding = f"At width {clocks(scale)[-1].width}, relative to one network: {ratios}."
    return Report(finding, text, (Table("times", "Time relative to one network", columns, tuple(rows)),))


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    found = {clock.width: results(clock) for clock in clocks(scale)}
    narrow, wide = found[min(found)], {width: times for width, times in found.items() if width >= 3000}
    return [
        Verdict.of(
            "For wide layers the block form takes roughly the time that its FLOPs predict, 1.75 times one network.",
            [abs(times["blocks"] - 1.75) < 0.2 for times in wide.values()],
            ", ".join(f"{times['blocks']:.2f} (width {width})" for width, times in wide.items()),
        ),
        Verdict.of(
            "There it is faster than the ensemble.",
            [times["blocks"] < times["ensemble"] for times in wide.values()],
            ", ".join(
                f"{times['blocks']:.2f} against {times['ensemble']:.2f} (width {width})"
                for width, times in wide.items()
            ),
        ),
        Verdict.of(
            "For narrow layers the dense form is faster than the block form and than the ensemble.",
            [narrow["dense"] < narrow["blocks"], narrow["dense"] < narrow["ensemble"]],
            f"width {min(found)}: dense {narrow['dense']:.2f}, blocks {narrow['blocks']:.2f}, ensemble "
            f"{narrow['ensemble']:.2f}; faster than the others",
        ),
    ]


EXPERIMENT = Experiment("wallclock1", "Wall-clock time of fused networks", ("Table 6",), "none", cells, report, claims)
