"""Time of a forward pass, fused and not."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..cells import Clock
from ..report import Item, Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .runs import measured
from .settings import Scale

PAPER = {
    100: ("0.057", "2.08", "0.95", "2.45"),
    500: ("0.061", "2.11", "1.03", "2.50"),
    3000: ("0.231", "2.01", "2.03", "2.24"),
    8000: ("1.249", "2.02", "2.24", "1.69"),
    12000: ("2.854", "2.02", "1.96", "1.59"),
    16000: ("4.878", "2.00", "2.27", "1.81"),
}


ROUNDS = {100: 2000, 500: 1000, 3000: 100, 8000: 40, 12000: 30, 16000: 20}
WIDE = 8000  # the width from which on the paper's block form is faster than its ensemble
FORMS = {"ensemble": "ensemble", "dense": "dense form", "blocks": "block form"}


def clocks(scale: Scale) -> list[Clock]:
    if scale == "quick":
        return [Clock(32, rounds=5)]
    return [Clock(width, rounds=rounds) for width, rounds in ROUNDS.items()]


def cells(scale: Scale) -> list[Cell]:
    return list(clocks(scale))


def _table(scale: Scale, results: Results) -> Table:
    rows: list[Row] = []
    for clock in clocks(scale):
        found, paper = results(clock), PAPER.get(clock.width, (None,) * 4)
        cells: list[Item] = [
            f"{clock.width:,}",
            f"{found['calls']:,}",
            Value.of([found["milliseconds"]], paper=paper[0]),
        ]
        for name, published in zip(FORMS, paper[1:], strict=True):
            cells += [
                Value.of([found[name]], paper=published),
                f"{found[f'{name}_low']:.2f} to {found[f'{name}_high']:.2f}",
            ]
        rows.append((*cells, "2.25", "1.75"))
    heads = [head for words in FORMS.values() for head in (words, "quartiles")]
    columns = ("width", "calls", "single (ms)", *heads, "FLOPs, dense form", "FLOPs, block form")
    return Table("times", "Time relative to one network", columns, tuple(rows))


def report(scale: Scale, results: Results) -> Report:
    text = (
        "MLPs with three hidden layers, alpha = 0.5, batches of 64. Calls are interleaved: in every round each network "
        "is called once, in a new order. Numbers are medians over the rounds of the CPU time of one thread relative to "
        "the single network in the same round, with their quartiles, so that other load on the machine hardly matters. "
        "The paper measured on an RTX A6000 GPU, we on the CPU named below."
    )
    last = results(clocks(scale)[-1])
    finding = (
        f"At width {clocks(scale)[-1].width:,} the block form takes {last['blocks']:.2f} times as long as one network, "
        f"and the ensemble {last['ensemble']:.2f} times."
    )
    return Report(finding, text, (measured(results, lambda r: _table(scale, r)),))


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    found = {clock.width: results(clock) for clock in clocks(scale)}
    narrow, wide = found[min(found)], {width: times for width, times in found.items() if width >= WIDE}
    return [
        Verdict.of(
            f"For wide layers, from width {WIDE:,} on, the block form takes roughly the time that its FLOPs predict, "
            "1.75 times one network.",
            [abs(times["blocks"] - 1.75) < 0.2 for times in wide.values()],
            _listed({width: f"{times['blocks']:.2f}" for width, times in wide.items()}, "1.69, 1.59, 1.81"),
            cases="widths",
        ),
        Verdict.of(
            "There it is faster than the ensemble.",
            [times["blocks"] < times["ensemble"] for times in wide.values()],
            _listed({w: f"{times['blocks']:.2f} against {times['ensemble']:.2f}" for w, times in wide.items()}),
            cases="widths",
        ),
        Verdict.of(
            "For narrow layers the dense form is faster than the block form and than the ensemble.",
            [narrow["dense"] < narrow["blocks"], narrow["dense"] < narrow["ensemble"]],
            f"width {min(found)}: dense {narrow['dense']:.2f}, blocks {narrow['blocks']:.2f}, ensemble "
            f"{narrow['ensemble']:.2f}",
            cases="comparisons",
        ),
    ]


def _listed(figures: dict[int, str], paper: str | None = None) -> str:
    listed = ", ".join(f"{found} (width {width:,})" for width, found in figures.items())
    return f"{listed}{f' (paper: {paper})' if paper else ''}"


EXPERIMENT = Experiment("wallclock1", "Wall-clock time of fused networks", ("Table 6",), "none", cells, report, claims)
